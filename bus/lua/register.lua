-- Announce an instance, renew it, or take it over with a new epoch.
--
-- KEYS[1]  forebay:{POOL}:instances           hash: INSTANCE -> EPOCH;EXPIRES_US;PAYLOAD
-- KEYS[2]  forebay:{POOL}:pressure:INSTANCE   hash, its field `epoch` is read
-- ARGV[1]  instance      field of KEYS[1]
-- ARGV[2]  epoch         integer; 0 claims a new one: max(any stored + 1, server time in microseconds)
-- ARGV[3]  lifetime_ms   integer >= 0, milliseconds until the entry counts as expired
-- ARGV[4]  remembered_ms integer >= 1, how long an expired entry is kept
-- ARGV[5]  payload       MessagePack bytes, never looked into
-- Returns  {1, epoch}    stored; `epoch` is a string, since Lua numbers lose digits in replies
--          {0, epoch}    refused: `epoch` owns the instance and is newer
local epoch, lifetime_ms, remembered_ms = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
if not epoch or not lifetime_ms or not remembered_ms or lifetime_ms < 0 or remembered_ms < 1 or #ARGV[5] == 0 then
  return redis.error_reply('ERR register: epoch, lifetime_ms and remembered_ms must be integers, payload not empty')
end

local now = redis.call('TIME')
local now_us = tonumber(now[1]) * 1000000 + tonumber(now[2])
local entry = redis.call('HGET', KEYS[1], ARGV[1])
local entry_text = entry and string.match(entry, '^(%d+);') or '0'
local entry_epoch = tonumber(entry_text)
local pressure_epoch = tonumber(redis.call('HGET', KEYS[2], 'epoch') or 0) or 0

if epoch == 0 then
  epoch = math.max(entry_epoch + 1, pressure_epoch + 1, now_us)
elseif entry_epoch > epoch then
  return {0, entry_text}
elseif pressure_epoch > epoch then
  return {0, string.format('%.0f', pressure_epoch)}
end

local epoch_text = string.format('%.0f', epoch)
local expires_text = string.format('%.0f', now_us + lifetime_ms * 1000)
redis.call('HSET', KEYS[1], ARGV[1], epoch_text .. ';' .. expires_text .. ';' .. ARGV[5])
if redis.call('PTTL', KEYS[1]) < lifetime_ms + remembered_ms then
  redis.call('PEXPIRE', KEYS[1], lifetime_ms + remembered_ms)
end

-- A few entries chosen at random are looked at, so that what has long expired goes without anybody scanning the hash.
local sample = redis.call('HRANDFIELD', KEYS[1], 4)
for _, id in ipairs(sample) do
  local value = redis.call('HGET', KEYS[1], id)
  local expires_us = value and tonumber(string.match(value, '^%d+;(%d+);') or 0)
  if expires_us and expires_us + remembered_ms * 1000 < now_us then
    redis.call('HDEL', KEYS[1], id)
  end
end
return {1, epoch_text}
