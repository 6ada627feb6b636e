-- Try what every user of the bus needs, so that a server that cannot be the bus is known before anything is built on it.
--
-- KEYS[1]  a key that nobody uses, with the pool's hash tag; it is gone afterwards
-- Returns  {command, complaint} of the first command that the server refuses inside a script; {} if it takes them all
local commands = {
  {'TIME'}, {'DEL', KEYS[1]}, {'HSET', KEYS[1], 'field', '1'}, {'HGET', KEYS[1], 'field'}, {'HMGET', KEYS[1], 'field'},
  {'HGETALL', KEYS[1]}, {'PTTL', KEYS[1]}, {'PEXPIRE', KEYS[1], 1000}, {'HDEL', KEYS[1], 'field'},
}
for _, command in ipairs(commands) do
  local reply = redis.pcall(unpack(command))
  if type(reply) == 'table' and reply.err then
    redis.pcall('DEL', KEYS[1])
    return {command[1], reply.err}
  end
end
return {}
