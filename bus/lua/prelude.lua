-- What several scripts share; put before each of them.
--
-- A `reserved` hash holds what replicas have reserved at an instance and no record shows yet:
--   tokens, requests   sums over the reservations in it
--   oldest             when the first of them may expire, server time in microseconds (never too late)
--   r:ID               one reservation: AMOUNT;EXPIRES_US
local LARGEST, YEAR_MS = 9007199254740991, 366 * 86400 * 1000

-- Longest life of a reservation, milliseconds: what would end later is rubbish, or older than a setting back of the clock.
local LONGEST_GRACE_MS = 60000

-- An integer from `least` to `most`, or nil: 'inf', 'nan' and '1.5' are numbers to Lua, and above 2^53 digits are lost.
local function whole(text, least, most)
  local number = tonumber(text)
  if number and number >= least and number <= most and number == math.floor(number) then
    return number
  end
end

-- A number that is finite, or nil.
local function finite(text)
  local number = tonumber(text)
  if number and number == number and number > -1e300 and number < 1e300 then
    return number
  end
end

local function digits(number)
  return string.format('%.0f', number)
end

-- Reply of a command on a key of ours. What stands there and is of another type was not written here, and goes: every
-- call that meets it would fail until somebody deleted it.
local function ours(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) ~= 'table' or not reply.err then
    return reply
  end
  if string.find(tostring(reply.err), 'WRONGTYPE', 1, true) then
    redis.call('DEL', key) -- a server that refuses writes refuses this one
  end
  return redis.call(command, key, ...) -- what else is wrong ends the script
end

-- Server time in microseconds.
local function server_us()
  local now = redis.call('TIME')
  return tonumber(now[1]) * 1000000 + tonumber(now[2])
end

-- Whether what ends then, microseconds, stands now.
local function is_ahead(expires_us, now_us)
  return expires_us and expires_us > now_us and expires_us <= now_us + LONGEST_GRACE_MS * 1000
end

-- Amount of one reservation and when it expires; nil if it has.
local function lease(text, now_us)
  local amount_text, expires_text = string.match(text, '^(%d+);(%d+)$')
  local amount, expires_us = whole(amount_text, 1, LARGEST), whole(expires_text, 0, LARGEST)
  if amount and is_ahead(expires_us, now_us) then
    return amount, expires_us
  end
end

-- Sums of what has not expired: tokens, requests, the earliest expiry, and the fields that have expired.
local function standing(key, now_us)
  local tokens, requests, oldest, expired = 0, 0, nil, {}
  local fields = redis.call('HGETALL', key)
  for i = 1, #fields, 2 do
    if string.sub(fields[i], 1, 2) == 'r:' then
      local amount, expires_us = lease(fields[i + 1], now_us)
      if amount then
        tokens, requests = math.min(tokens + amount, LARGEST), requests + 1
        oldest = math.min(oldest or expires_us, expires_us)
      else
        expired[#expired + 1] = fields[i]
      end
    end
  end
  return tokens, requests, oldest, expired
end

-- The sums of HMGET tokens, requests, oldest: 0, 0 where there are none; nil if they have to be made anew, since something
-- may have expired or they are no sums.
local function sums_of(stored, now_us)
  if not (stored[1] or stored[2] or stored[3]) then
    return 0, 0
  end
  local tokens, requests = whole(stored[1], 1, LARGEST), whole(stored[2], 1, LARGEST)
  local oldest = whole(stored[3], 0, LARGEST)
  if tokens and requests and is_ahead(oldest, now_us) then
    return tokens, requests, oldest
  end
end

-- Sums now, nothing written; what has expired does not count.
local function in_transit(key, now_us)
  local tokens, requests = sums_of(redis.call('HMGET', key, 'tokens', 'requests', 'oldest'), now_us)
  if tokens then
    return tokens, requests
  end
  return standing(key, now_us)
end

-- Drop what has expired and make the sums anew; where nothing stands the key goes. Returns the sums and the earliest expiry.
local function recount(key, now_us)
  local tokens, requests, oldest, expired = standing(key, now_us)
  if requests == 0 then
    redis.call('DEL', key)
    return 0, 0
  end
  for _, field in ipairs(expired) do
    redis.call('HDEL', key, field)
  end
  redis.call('HSET', key, 'tokens', digits(tokens), 'requests', digits(requests), 'oldest', digits(oldest))
  return tokens, requests, oldest
end

-- Sums now and the earliest expiry, after a recount if one is due.
local function sweep(key, now_us)
  local tokens, requests, oldest = sums_of(ours('HMGET', key, 'tokens', 'requests', 'oldest'), now_us)
  if tokens then
    return tokens, requests, oldest
  end
  return recount(key, now_us)
end

-- End the reservations whose ids are ARGV[first…], whoever asks; returns how many stood. One that has ended is no matter.
local function end_reservations(key, now_us, first)
  local tokens, requests = sweep(key, now_us)
  local ended = 0
  for i = first, requests > 0 and #ARGV or 0 do
    local field = 'r:' .. ARGV[i]
    local stored = redis.call('HGET', key, field)
    if stored then
      redis.call('HDEL', key, field)
      local amount = lease(stored, now_us) or tokens -- rubbish: nobody knows what it added, so all are counted anew
      tokens, requests, ended = tokens - amount, requests - 1, ended + 1
    end
  end
  if ended > 0 and tokens > 0 and requests > 0 then
    redis.call('HSET', key, 'tokens', digits(tokens), 'requests', digits(requests))
  elseif ended > 0 then
    recount(key, now_us)
  end
  return ended
end

-- Tokens that an API key has spent, draining by its limit a minute: the hash `spent` of take_key.

-- What is left of it now. What is stored and no number was not written here, and counts as nothing.
local function spent_now(key, per_minute, now_us)
  local stored = ours('HMGET', key, 'tokens', 'at_us')
  local tokens, at_us = finite(stored[1]), whole(stored[2], 0, LARGEST)
  if not tokens or not at_us then
    return 0
  end
  return math.max(0, tokens - per_minute * math.max(0, now_us - at_us) / 60000000)
end

-- Store it; the key lives until all has drained, at most a day.
local function spend(key, per_minute, tokens, now_us)
  redis.call('HSET', key, 'tokens', string.format('%.17g', tokens), 'at_us', digits(now_us))
  redis.call('PEXPIRE', key, digits(math.min(86400000, math.ceil(tokens * 60000 / per_minute) + 1000)))
end
