-- Store one pressure record, unless a newer worker owns the instance.
--
-- KEYS[1]  forebay:{POOL}:pressure:INSTANCE   hash: record, epoch, sequence, published_us
-- KEYS[2]  forebay:{POOL}:instances           hash: INSTANCE -> EPOCH;EXPIRES_US;PAYLOAD
-- ARGV[1]  record      MessagePack bytes, never looked into
-- ARGV[2]  epoch       integer >= 1, fencing number of this worker
-- ARGV[3]  sequence    integer >= 0, number of the record within the epoch
-- ARGV[4]  ttl_ms      integer >= 1, life of the record, milliseconds
-- ARGV[5]  instance    field of KEYS[2]
-- Returns  {1, registered}  stored; registered is 0 if no living registration of this epoch stands
--          {0, epoch}       refused: `epoch`, a string, is the one that owns the instance

-- An integer from `least` to 2^53 - 1, or nil: above that digits are lost, and 'inf', 'nan' and '1.5' are numbers too.
local function whole(text, least)
  local number = tonumber(text)
  if number and number >= least and number <= 9007199254740991 and number == math.floor(number) then
    return number
  end
end

local record, instance = ARGV[1] or '', ARGV[5] or ''
local epoch, sequence, ttl_ms = whole(ARGV[2], 1), whole(ARGV[3], 0), whole(ARGV[4], 1)
if not epoch or not sequence or not ttl_ms or record == '' or instance == '' then
  return redis.error_reply('ERR publish: epoch, sequence and ttl_ms must be integers, record and instance not empty')
end

-- What is stored and is no epoch was not written by a worker, and fences nobody off.
local stored = redis.call('HMGET', KEYS[1], 'epoch', 'sequence')
local stored_epoch, stored_sequence = whole(stored[1], 1) or 0, whole(stored[2], 0) or 0
local entry = redis.call('HGET', KEYS[2], instance)
local entry_text, entry_expires = string.match(entry or '', '^(%d+);(%d+);')
local entry_epoch = whole(entry_text, 1) or 0

local owner = math.max(stored_epoch, entry_epoch)
if owner > epoch or (stored_epoch == epoch and stored_sequence >= sequence) then
  return {0, string.format('%.0f', owner)}
end

local now = redis.call('TIME')
local published_us = now[1] .. string.format('%06d', tonumber(now[2]))
redis.call('HSET', KEYS[1], 'record', record, 'published_us', published_us,
  'epoch', string.format('%.0f', epoch), 'sequence', string.format('%.0f', sequence))
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', ttl_ms))
local is_alive = entry_epoch == epoch and tonumber(entry_expires) > tonumber(now[1]) * 1000000 + tonumber(now[2])
return {1, is_alive and 1 or 0}
