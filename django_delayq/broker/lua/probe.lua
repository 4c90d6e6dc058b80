-- PURPOSE  Try what the other scripts need of a server, on one key that nobody else uses and that is gone afterwards.
-- KEYS     the constant list; JOURNAL is that key
-- ARGV     channel, number
-- RETURNS  seconds and µs of TIME, the number through Lua and as a score, a range, a hash, then '<command>: <why>'…
-- COST     O(1)
-- ATOMIC BECAUSE nothing of it may be seen, nor stay behind where a part of it is refused.
local number, refused, passing = ARGV[2], {}

local function try(...)
  local reply = redis.pcall(...)
  local why = type(reply) == 'table' and reply.err
  if not why then return reply end
  for _, word in ipairs({'MISCONF', 'READONLY', 'NOREPLICAS', 'MASTERDOWN'}) do
    if string.find(why, word, 1, true) then passing = reply end -- the server is in trouble, and not unfit
  end
  refused[#refused + 1] = (...) .. ': ' .. why
end

local function try_each(commands)
  for _, command in ipairs(commands) do try(command[1], JOURNAL, unpack(command, 2)) end
end

local function first(reply) return type(reply) == 'table' and reply[1] or '' end

local time = try('TIME') or {'0', '0'}
try('DEL', JOURNAL) -- of whatever type; and after a write the memory may be full
try('ZADD', JOURNAL, 'NX', number, 'm')
local score = tonumber(first(try('ZMSCORE', JOURNAL, 'm')))
local range = first(try('ZRANGE', JOURNAL, '-inf', number, 'BYSCORE', 'LIMIT', 0, 1))
try_each({{'ZCOUNT', '-inf', number}, {'ZCARD'}, {'ZREM', 'm'}, {'HSET', 'm', number}})
local hash = first(try('HMGET', JOURNAL, 'm'))
try_each({{'HGET', 'm'}, {'HGETALL'}, {'HEXISTS', 'm'}, {'HLEN'}, {'HDEL', 'm'}})
try_each({{'SET', number, 'PX', '1'}, {'GET'}, {'PTTL'}, {'EXISTS'}, {'DEL'}}) -- it goes by itself too
try('PUBLISH', ARGV[1], '')
if passing then return passing end
return {time[1], time[2], int(tonumber(number)), score and int(score) or '', range, hash, unpack(refused)}
