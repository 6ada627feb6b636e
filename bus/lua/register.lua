-- Announce an instance, renew it, or take it over with a new epoch.
--
-- KEYS[1]  forebay:{POOL}:instances           hash: INSTANCE -> EPOCH;EXPIRES_US;PAYLOAD
-- KEYS[2]  forebay:{POOL}:pressure:INSTANCE   hash, its field `epoch` is read
-- ARGV[1]  instance      field of KEYS[1]
-- ARGV[2]  epoch         integer; 0 claims a new one: max(any stored + 1, server time in microseconds)
-- ARGV[3]  lifetime_ms   integer >= 0, milliseconds until the entry counts as expired, at most a year
-- ARGV[4]  remembered_ms integer >= 1, how long an expired entry is kept, at most a year
-- ARGV[5]  payload       MessagePack bytes, never looked into
-- Returns  {1, epoch}    stored; `epoch` is a string, since Lua numbers lose digits in replies
--          {0, epoch}    refused: `epoch` owns the instance and is newer
local instance, payload = ARGV[1] or '', ARGV[5] or ''
local epoch = whole(ARGV[2], 0, LARGEST)
local lifetime_ms, remembered_ms = whole(ARGV[3], 0, YEAR_MS), whole(ARGV[4], 1, YEAR_MS)
if not epoch or not lifetime_ms or not remembered_ms or instance == '' or payload == '' then
  return redis.error_reply('ERR register: epoch and times must be integers in range, instance and payload not empty')
end

local now_us = server_us()

-- What is stored and is no epoch was not written by a worker, and fences nobody off.
local entry = ours('HGET', KEYS[1], instance)
local entry_epoch = whole(string.match(entry or '', '^(%d+);'), 1, LARGEST) or 0
local pressure_epoch = whole(ours('HGET', KEYS[2], 'epoch'), 1, LARGEST) or 0
local owner = math.max(entry_epoch, pressure_epoch)

if epoch == 0 then
  epoch = math.max(owner + 1, now_us)
  if epoch > LARGEST then
    return redis.error_reply('ERR register: the epoch that is stored is the largest there is')
  end
elseif owner > epoch then
  return {0, digits(owner)}
end

local epoch_text = digits(epoch)
local expires_text = digits(now_us + lifetime_ms * 1000)
redis.call('HSET', KEYS[1], instance, epoch_text .. ';' .. expires_text .. ';' .. payload)
if redis.call('PTTL', KEYS[1]) < lifetime_ms + remembered_ms then
  redis.call('PEXPIRE', KEYS[1], digits(lifetime_ms + remembered_ms))
end

-- A few entries chosen at random are looked at, so that what has long expired goes without anybody scanning the hash.
local sample = redis.call('HRANDFIELD', KEYS[1], 4)
for _, id in ipairs(sample) do
  local value = redis.call('HGET', KEYS[1], id)
  local expires_us = tonumber(string.match(value, '^%d+;(%d+);') or 0)
  if expires_us + remembered_ms * 1000 < now_us then
    redis.call('HDEL', KEYS[1], id)
  end
end
return {1, epoch_text}
