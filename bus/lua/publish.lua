-- Store one pressure record and settle what it counts, unless a newer worker owns the instance.
--
-- KEYS[1]  forebay:{POOL}:pressure:INSTANCE   hash: record, epoch, sequence, published_us
-- KEYS[2]  forebay:{POOL}:instances           hash: INSTANCE -> EPOCH;EXPIRES_US;PAYLOAD
-- KEYS[3]  forebay:{POOL}:reserved:INSTANCE   hash, see the prelude
-- ARGV[1]  record      MessagePack bytes, never looked into
-- ARGV[2]  epoch       integer >= 1, fencing number of this worker
-- ARGV[3]  sequence    integer >= 0, number of the record within the epoch
-- ARGV[4]  ttl_ms      integer >= 1, life of the record, milliseconds
-- ARGV[5]  instance    field of KEYS[2]
-- ARGV[6…] reservations whose requests this record counts, or that have already ended: settled in the same step
-- Returns  {1, registered, settled}  stored; registered is 0 if no living registration of this epoch stands; settled is
--                           how many of the reservations stood
--          {0, epoch}       refused: `epoch`, a string, is the one that owns the instance

local record, instance = ARGV[1] or '', ARGV[5] or ''
local epoch, sequence, ttl_ms = whole(ARGV[2], 1, LARGEST), whole(ARGV[3], 0, LARGEST), whole(ARGV[4], 1, YEAR_MS)
if not epoch or not sequence or not ttl_ms or record == '' or instance == '' then
  return redis.error_reply('ERR publish: epoch, sequence and ttl_ms must be integers, record and instance not empty')
end

-- What is stored and is no epoch was not written by a worker, and fences nobody off.
local stored = ours('HMGET', KEYS[1], 'epoch', 'sequence')
local stored_epoch, stored_sequence = whole(stored[1], 1, LARGEST) or 0, whole(stored[2], 0, LARGEST) or 0
local entry = ours('HGET', KEYS[2], instance)
local entry_text, entry_expires = string.match(entry or '', '^(%d+);(%d+);')
local entry_epoch = whole(entry_text, 1, LARGEST) or 0

local owner = math.max(stored_epoch, entry_epoch)
if owner > epoch or (stored_epoch == epoch and stored_sequence >= sequence) then
  return {0, digits(owner)}
end

local now_us = server_us()
redis.call('HSET', KEYS[1], 'record', record, 'published_us', digits(now_us),
  'epoch', digits(epoch), 'sequence', digits(sequence))
redis.call('PEXPIRE', KEYS[1], digits(ttl_ms))
local settled = end_reservations(KEYS[3], now_us, 6)
return {1, entry_epoch == epoch and tonumber(entry_expires) > now_us and 1 or 0, settled}
