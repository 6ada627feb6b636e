-- Store one pressure record, unless a newer worker owns the instance.
--
-- KEYS[1]  forebay:{POOL}:pressure:INSTANCE   hash: record, epoch, sequence, published_us
-- KEYS[2]  forebay:{POOL}:instances           hash: INSTANCE -> EPOCH;EXPIRES_US;PAYLOAD
-- ARGV[1]  record      MessagePack bytes, never looked into
-- ARGV[2]  epoch       integer, fencing number of this worker
-- ARGV[3]  sequence    integer, number of the record within the epoch
-- ARGV[4]  ttl_ms      integer >= 1, life of the record, milliseconds
-- ARGV[5]  instance    field of KEYS[2]
-- Returns  {1, registered}  stored; registered is 0 if no living registration of this epoch stands
--          {0, epoch}       refused: `epoch`, a string, is the one that owns the instance
local epoch, sequence, ttl_ms = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
if not epoch or not sequence or not ttl_ms or ttl_ms < 1 or ttl_ms ~= math.floor(ttl_ms) or #ARGV[1] == 0 then
  return redis.error_reply('ERR publish: epoch, sequence and ttl_ms must be integers, record must not be empty')
end

local stored = redis.call('HMGET', KEYS[1], 'epoch', 'sequence')
local stored_epoch, stored_sequence = tonumber(stored[1] or 0) or 0, tonumber(stored[2] or 0) or 0
local entry = redis.call('HGET', KEYS[2], ARGV[5])
local entry_text, entry_expires = string.match(entry or '', '^(%d+);(%d+);')
local entry_epoch = tonumber(entry_text or 0)

if entry_epoch > epoch then
  return {0, entry_text}
end
if stored_epoch > epoch then
  return {0, stored[1]}
end
if stored_epoch == epoch and stored_sequence >= sequence then
  return {0, stored[1]}
end

local now = redis.call('TIME')
local published_us = now[1] .. string.format('%06d', tonumber(now[2]))
redis.call('HSET', KEYS[1], 'record', ARGV[1], 'epoch', ARGV[2], 'sequence', ARGV[3], 'published_us', published_us)
redis.call('PEXPIRE', KEYS[1], ttl_ms)
local is_alive = entry_epoch == epoch and tonumber(entry_expires) > tonumber(now[1]) * 1000000 + tonumber(now[2])
return {1, is_alive and 1 or 0}
