-- End a request of an API key: its lease goes, and what it was expected to spend becomes what it spent.
--
-- KEYS[1]  forebay:{api-keys}:leases:NAME   see take_key
-- KEYS[2]  forebay:{api-keys}:spent:NAME    see take_key
-- ARGV[1]  id          of the lease; empty: there was none
-- ARGV[2]  per_minute  integer >= 0, tokens a minute; 0: none were counted
-- ARGV[3]  correction  integer, tokens spent beyond those taken; below 0: fewer
-- Returns  1
local id, per_minute, correction = ARGV[1], whole(ARGV[2], 0, LARGEST), whole(ARGV[3], -LARGEST, LARGEST)
if not id or not per_minute or not correction then
  return redis.error_reply('ERR settle_key: id, per_minute and correction, in range')
end
if id ~= '' then
  ours('ZREM', KEYS[1], id)
end
if per_minute > 0 and correction ~= 0 then
  local now_us = server_us()
  spend(KEYS[2], per_minute, math.max(0, spent_now(KEYS[2], per_minute, now_us) + correction), now_us)
end
return 1
