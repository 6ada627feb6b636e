-- Read the pressure of a whole pool in one round trip. Writes nothing.
--
-- KEYS[1]   forebay:{POOL}:instances            hash: INSTANCE -> EPOCH;EXPIRES_US;PAYLOAD
-- KEYS[2…]  forebay:{POOL}:pressure:INSTANCE    hash: record, epoch, sequence, published_us
-- ARGV[1]   1: send the registrations too; 0: the caller still has them
-- ARGV[2]   largest record that is sent, bytes; of a larger one only its length comes
-- Returns   {seconds, microseconds, registrations, pressure…}
--   seconds, microseconds   server time, strings
--   registrations           flat list of instance, entry; or nil
--   pressure                for each of KEYS[2…]: {record or nil, published_us or nil, length of the record}
local now = redis.call('TIME')
local reply = {now[1], now[2], false}
if ARGV[1] == '1' then
  reply[3] = redis.call('HGETALL', KEYS[1])
end
local largest = tonumber(ARGV[2])
for i = 2, #KEYS do
  -- pcall: a key of another type makes this one instance unknown, not the whole pool
  local stored = redis.pcall('HMGET', KEYS[i], 'record', 'published_us')
  if stored.err then
    reply[i + 2] = {false, false, -1}
  else
    local record = stored[1]
    local length = record and #record or 0
    reply[i + 2] = {length <= largest and record, stored[2], length}
  end
end
return reply
