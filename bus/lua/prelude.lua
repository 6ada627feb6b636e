-- What several scripts share; put before each of them.
--
-- A `reserved` hash holds what replicas have reserved at an instance and no record shows yet:
--   tokens, requests   sums over the reservations in it
--   oldest             when the first of them may expire, server time in microseconds (never too late)
--   r:ID               one reservation: AMOUNT;EXPIRES_US
local LARGEST, YEAR_MS = 9007199254740991, 366 * 86400 * 1000

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

-- Server time in microseconds.
local function server_us()
  local now = redis.call('TIME')
  return tonumber(now[1]) * 1000000 + tonumber(now[2])
end

-- Amount and expiry of one reservation.
local function lease(text)
  local amount, expires_us = string.match(text, '^(%d+);(%d+)$')
  return whole(amount, 1, LARGEST), whole(expires_us, 0, LARGEST)
end

-- Sums of what has not expired: tokens, requests, the earliest expiry, and the fields that have expired.
local function standing(key, now_us)
  local tokens, requests, oldest, expired = 0, 0, nil, {}
  local fields = redis.call('HGETALL', key)
  for i = 1, #fields, 2 do
    if string.sub(fields[i], 1, 2) == 'r:' then
      local amount, expires_us = lease(fields[i + 1])
      if amount and expires_us and expires_us > now_us then
        tokens, requests = tokens + amount, requests + 1
        oldest = math.min(oldest or expires_us, expires_us)
      else
        expired[#expired + 1] = fields[i]
      end
    end
  end
  return tokens, requests, oldest, expired
end

-- Sums now, nothing written; what has expired does not count.
local function in_transit(key, now_us)
  local sums = redis.call('HMGET', key, 'tokens', 'requests', 'oldest')
  local tokens, requests = whole(sums[1], 0, LARGEST), whole(sums[2], 0, LARGEST)
  local oldest = whole(sums[3], 0, LARGEST)
  if tokens and requests and oldest and oldest > now_us then
    return tokens, requests
  elseif not (sums[1] or sums[2] or sums[3]) then
    return 0, 0
  end
  return standing(key, now_us)
end

-- Drop what has expired and make the sums anew, if something may have.
local function sweep(key, now_us)
  local oldest = redis.call('HGET', key, 'oldest')
  if not oldest or (whole(oldest, 0, LARGEST) or 0) > now_us then
    return
  end
  local tokens, requests, next_oldest, expired = standing(key, now_us)
  if requests == 0 then
    redis.call('DEL', key)
    return
  end
  for _, field in ipairs(expired) do
    redis.call('HDEL', key, field)
  end
  redis.call('HSET', key, 'tokens', digits(tokens), 'requests', digits(requests), 'oldest', digits(next_oldest))
end

-- End one reservation, whoever asks; 1 if it stood, 0 if it had ended before.
local function end_reservation(key, id)
  local field = 'r:' .. id
  local stored = redis.call('HGET', key, field)
  if not stored then
    return 0
  end
  local amount = lease(stored) or 0
  redis.call('HDEL', key, field)
  redis.call('HINCRBY', key, 'tokens', digits(-amount))
  if redis.call('HINCRBY', key, 'requests', -1) <= 0 then
    redis.call('DEL', key)
  end
  return 1
end
