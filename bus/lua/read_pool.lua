-- Read the pressure of a whole pool in one round trip. Writes nothing.
--
-- KEYS[1]   forebay:{POOL}:instances            hash: INSTANCE -> EPOCH;EXPIRES_US;PAYLOAD
-- KEYS[2…]  forebay:{POOL}:pressure:INSTANCE    hash: record, epoch, sequence, published_us
-- ARGV[1]   1: send the registrations too; 0: the caller still has them
-- ARGV[2]   largest record that is sent, bytes; of a larger one only its length comes
-- ARGV[3]   largest registration that is sent, bytes; of a larger one an empty string comes
-- Returns   {seconds, microseconds, registrations, pressure…}
--   seconds, microseconds   server time, strings
--   registrations           flat list of instance, entry; or nil
--   pressure                for each of KEYS[2…]: {record or nil, published_us or nil, length of the record}
local LARGEST_TIME = 20 -- bytes; a longer published_us is no time, and comes as an empty string
local now = redis.call('TIME')
local reply = {now[1], now[2], false}
local largest_record, largest_entry = tonumber(ARGV[2]), tonumber(ARGV[3])
if ARGV[1] == '1' then
  local entries = redis.call('HGETALL', KEYS[1])
  for i, text in ipairs(entries) do
    if #text > largest_entry then
      entries[i] = ''
    end
  end
  reply[3] = entries
end
for i = 2, #KEYS do
  -- pcall: a key of another type makes this one instance unknown, not the whole pool
  local stored = redis.pcall('HMGET', KEYS[i], 'record', 'published_us')
  if stored.err then
    reply[i + 2] = {false, false, -1}
  else
    local record, published_us = stored[1], stored[2]
    local length = record and #record or 0
    if published_us and #published_us > LARGEST_TIME then
      published_us = ''
    end
    reply[i + 2] = {length <= largest_record and record, published_us, length}
  end
end
return reply
