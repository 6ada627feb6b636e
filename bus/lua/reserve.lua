-- Choose the best of several instances and reserve there, in one step for all replicas.
--
-- KEYS[1…k]  forebay:{POOL}:reserved:INSTANCE   hash, see the prelude; k offers, at most 16, in the caller's tie order
-- ARGV[1]  id          of the reservation
-- ARGV[2]  amount      integer >= 1, tokens
-- ARGV[3]  grace_ms    integer >= 1, life of the reservation, milliseconds, at most a minute
-- ARGV[4]  view_us     server time of the view that the scores were computed from, microseconds
-- ARGV[5]  oldest_us   integer >= 0, age of the view, microseconds, above which nothing is done
-- then for each offer: score, per_token, per_request, tokens_seen, requests_seen
-- Returns  {0}         too late: nothing was done
--          {index, score, tokens, requests, score, tokens, requests, …}   the offer chosen, 1 for the first, and for
--                      each offer its score with the sums of now (a string, "%.17g": numbers lose their fraction in
--                      replies) and those sums, before this reservation
local id, amount, grace_ms = ARGV[1] or '', whole(ARGV[2], 1, LARGEST), whole(ARGV[3], 1, LONGEST_GRACE_MS)
local view_us, oldest_us = whole(ARGV[4], 0, LARGEST), whole(ARGV[5], 0, LARGEST)
if id == '' or not amount or not grace_ms or not view_us or not oldest_us or #ARGV ~= 5 + 5 * #KEYS or #KEYS == 0 then
  return redis.error_reply('ERR reserve: id, amount, grace_ms, view_us, oldest_us and five numbers an offer, in range')
end
local offers = {}
for i = 6, #ARGV do
  offers[i - 5] = finite(ARGV[i])
  if not offers[i - 5] then
    return redis.error_reply('ERR reserve: an offer has a number that is none')
  end
end

local now_us = server_us()
if now_us - view_us > oldest_us then
  return {0}
end

local reply = {0}
local best, best_score = 0, nil
local best_tokens, best_requests, best_oldest
for i, key in ipairs(KEYS) do
  local tokens, requests, oldest = sweep(key, now_us)
  local at = 5 * (i - 1)
  local score = offers[at + 1] + offers[at + 2] * (tokens - offers[at + 4]) + offers[at + 3] * (requests - offers[at + 5])
  if not best_score or score < best_score then
    best, best_score = i, score
    best_tokens, best_requests, best_oldest = tokens, requests, oldest
  end
  reply[3 * i - 1] = string.format('%.17g', score)
  reply[3 * i] = tokens
  reply[3 * i + 1] = requests
end
reply[1] = best

local key, field = KEYS[best], 'r:' .. id
local stored = redis.call('HGET', key, field)
if not (stored and lease(stored, now_us)) then -- it does not stand already; rubbish in its place does not count
  local expires_us = now_us + grace_ms * 1000
  redis.call('HSET', key, field, digits(amount) .. ';' .. digits(expires_us),
    'tokens', digits(math.min(best_tokens + amount, LARGEST)), 'requests', digits(best_requests + 1),
    'oldest', digits(math.min(best_oldest or expires_us, expires_us)))
  if redis.call('PTTL', key) < grace_ms then
    redis.call('PEXPIRE', key, digits(grace_ms))
  end
end
return reply
