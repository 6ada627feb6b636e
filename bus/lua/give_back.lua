-- Give a reservation back: it was not delivered. Ending it again changes nothing.
--
-- KEYS[1]  forebay:{POOL}:reserved:INSTANCE   hash, see the prelude
-- ARGV[1]  id   of the reservation
-- Returns  1 if it stood, 0 if it had ended before
if (ARGV[1] or '') == '' then
  return redis.error_reply('ERR give_back: id must not be empty')
end
return end_reservations(KEYS[1], server_us(), 1)
