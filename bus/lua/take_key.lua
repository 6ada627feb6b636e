-- Let a request of an API key in if the key's limits allow it: a lease for being in flight, tokens out of a bucket.
--
-- KEYS[1]  forebay:{api-keys}:leases:NAME   sorted set: lease id -> when it expires, server time in microseconds
-- KEYS[2]  forebay:{api-keys}:spent:NAME    hash: tokens, at_us; what was spent, as it stood then. It drains evenly, by
--                                      the limit a minute; above the limit nothing more is let in
-- ARGV[1]  id          of the lease
-- ARGV[2]  lease_ms    integer >= 0, life of the lease, at most an hour; 0: none is wanted
-- ARGV[3]  inflight    integer >= 0, most leases at once; 0: any number
-- ARGV[4]  per_minute  integer >= 0, tokens a minute; 0: any number
-- ARGV[5]  tokens      integer >= 0, what the request is expected to spend
-- Returns  {1, 0}       let in; a lease that stood already is renewed, and what it spends is not taken again
--          {0, wait_ms} too many tokens; there will be enough in so many milliseconds
--          {-1, 0}      too many in flight
local id, lease_ms, inflight = ARGV[1] or '', whole(ARGV[2], 0, 3600000), whole(ARGV[3], 0, LARGEST)
local per_minute, tokens = whole(ARGV[4], 0, LARGEST), whole(ARGV[5], 0, LARGEST)
if id == '' or not lease_ms or not inflight or not per_minute or not tokens then
  return redis.error_reply('ERR take_key: id must not be empty, lease_ms, inflight, per_minute and tokens be in range')
end

local now_us = server_us()
local is_renewal = false
if lease_ms > 0 then
  ours('ZREMRANGEBYSCORE', KEYS[1], '-inf', digits(now_us))
  is_renewal = redis.call('ZSCORE', KEYS[1], id) and true or false
  if not is_renewal and inflight > 0 and redis.call('ZCARD', KEYS[1]) >= inflight then
    return {-1, 0}
  end
end

if per_minute > 0 and tokens > 0 and not is_renewal then
  local spent = spent_now(KEYS[2], per_minute, now_us)
  local most = math.max(0, per_minute - tokens) -- what is larger than the bucket waits until it is empty
  if spent > most then
    return {0, math.ceil((spent - most) * 60000 / per_minute)}
  end
  spend(KEYS[2], per_minute, spent + tokens, now_us)
end

if lease_ms > 0 then
  redis.call('ZADD', KEYS[1], digits(now_us + lease_ms * 1000), id)
  redis.call('PEXPIRE', KEYS[1], digits(lease_ms + 1000))
end
return {1, 0}
