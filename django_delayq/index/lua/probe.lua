-- PURPOSE  Try the commands that the other scripts need, on a temporary key.
-- KEYS     the constant list; JOURNAL is that key
-- ARGV     a number, then the commands as JSON, each a list of texts
-- RETURNS  JSON: the number through Lua, then the reply to each command, {err} if refused
-- COST     O(1)
-- ATOMIC BECAUSE other clients must not see the key, and it must not be left behind if a command is refused.
local replies = {int(tonumber(ARGV[1]))}
for i, command in ipairs(cjson.decode(ARGV[2])) do
  local reply = redis.pcall(unpack(command))
  for _, word in ipairs({'MISCONF', 'READONLY', 'NOREPLICAS', 'MASTERDOWN'}) do
    -- A passing state of the server: it is not unfit.
    if type(reply) == 'table' and reply.err and string.find(reply.err, word, 1, true) then return reply end
  end
  replies[i + 1] = reply
end
return cjson.encode(replies)
