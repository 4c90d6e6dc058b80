-- PURPOSE  Give members back with their next due point, or drop those that have none.
-- KEYS     the constant list
-- ARGV     channel, place, then per member: member, fence, generation used, next point_ms | '', next wake_ms
-- RETURNS  per member: 1 applied, 2 applied but edited meanwhile (score = now, point kept), 0 not the caller's any more
-- COST     O(members · log N)
-- ATOMIC BECAUSE the fence must hold for the whole move, and an edit must not slip between comparison and move.
call('HDEL', ATTEMPTS, '') -- see Note [Out of memory] in renew.lua
local now, before, members = server_ms(), head(), {}
for i = 3, #ARGV, 5 do members[#members + 1] = ARGV[i] end
if #members == 0 then return {} end
local holders, stored = call('HMGET', LEASE, unpack(members)), call('HMGET', GEN, unpack(members))
local replies, scores, points, generations, kept, gone = {}, {}, {}, {}, {}, {}
local function append(list, a, b) list[#list + 1], list[#list + 2] = a, b end
for i, member in ipairs(members) do
  local at = 5 * i - 2
  local used, point, wake = ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  local known = whole(stored[i]) or 0
  if holders[i] ~= ARGV[at + 1] then
    replies[i] = 0
  elseif known > tonumber(used) then
    -- Edited during the lease: wake at once, to be judged again under the new definition.
    replies[i], kept[#kept + 1] = 2, member
    append(scores, int(now), member)
  elseif point == '' then
    replies[i], gone[#gone + 1] = 1, member
  else
    replies[i], kept[#kept + 1] = 1, member
    append(scores, wake, member)
    append(points, member, point)
    if known < tonumber(used) then append(generations, member, used) end
  end
end
if #scores > 0 then call('ZADD', DUE, unpack(scores)) end
if #points > 0 then call('HSET', POINT, unpack(points)) end
if #generations > 0 then call('HSET', GEN, unpack(generations)) end
if #kept > 0 then
  call('HDEL', LEASE, unpack(kept))
  call('HDEL', ATTEMPTS, unpack(kept))
end
if #gone > 0 then drop(gone) end
hint(before, ARGV[1], ARGV[2])
return replies
