-- Read the pressure of a whole pool in one round trip. Writes nothing.
--
-- KEYS[1]   forebay:{POOL}:instances            hash: INSTANCE -> EPOCH;EXPIRES_US;PAYLOAD
-- KEYS[2…]  for each instance two keys:
--           forebay:{POOL}:pressure:INSTANCE    hash: record, epoch, sequence, published_us
--           forebay:{POOL}:reserved:INSTANCE    hash, see the prelude
-- ARGV[1]   1: send the registrations too; 0: the caller still has them
-- ARGV[2]   largest record that is sent, bytes; of a larger one only its length comes
-- ARGV[3]   largest registration that is sent, bytes; of a larger one an empty string comes
-- Returns   {seconds, microseconds, registrations, pressure…}
--   seconds, microseconds   server time, strings
--   registrations           flat list of instance, entry; or nil
--   pressure                for each instance: {record or nil, published_us or nil, length of the record,
--                           tokens in transit, requests in transit}
local LARGEST_TIME = 20 -- bytes; a longer published_us is no time, and comes as an empty string
local now = redis.call('TIME')
local now_us = tonumber(now[1]) * 1000000 + tonumber(now[2])
local reply = {now[1], now[2], false}
local largest_record, largest_entry = tonumber(ARGV[2]), tonumber(ARGV[3])
if ARGV[1] == '1' then
  local entries = redis.pcall('HGETALL', KEYS[1])
  if entries.err then -- a key of another type: the next publish replaces it
    entries = {}
  end
  for i, text in ipairs(entries) do
    if #text > largest_entry then
      entries[i] = ''
    end
  end
  reply[3] = entries
end
for i = 2, #KEYS, 2 do
  -- pcall: a key of another type makes this one instance unknown, not the whole pool
  local length = redis.pcall('HSTRLEN', KEYS[i], 'record') -- first: to take 10 MB into Lua holds the server up for 65 ms
  local field = type(length) == 'number' and length > largest_record and 'none' or 'record'
  local stored = redis.pcall('HMGET', KEYS[i], field, 'published_us')
  local is_readable, tokens, requests = pcall(in_transit, KEYS[i + 1], now_us)
  if not is_readable then
    tokens, requests = 0, 0
  end
  if stored.err then
    reply[#reply + 1] = {false, false, -1, tokens, requests}
  else
    local record, published_us = stored[1], stored[2]
    if published_us and #published_us > LARGEST_TIME then
      published_us = ''
    end
    reply[#reply + 1] = {record, published_us, length, tokens, requests}
  end
end
return reply
