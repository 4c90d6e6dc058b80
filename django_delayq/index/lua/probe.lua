-- PURPOSE  Try the commands that the other scripts need, on a key that is used by nothing else and deleted afterwards.
-- KEYS     the constant list; JOURNAL is that key
-- ARGV     a number, then the commands as JSON, each a list of texts
-- RETURNS  JSON: the number through Lua, then the reply to each command, {err} where it was refused
-- COST     O(1)
-- ATOMIC BECAUSE nothing of it may be seen, nor stay behind where a part of it is refused.
local replies = {int(tonumber(ARGV[1]))}
for i, command in ipairs(cjson.decode(ARGV[2])) do
  local reply = redis.pcall(unpack(command))
  for _, word in ipairs({'MISCONF', 'READONLY', 'NOREPLICAS', 'MASTERDOWN'}) do
    -- The server is in trouble, and not unfit.
    if type(reply) == 'table' and reply.err and string.find(reply.err, word, 1, true) then return reply end
  end
  replies[i + 1] = reply
end
return cjson.encode(replies)
