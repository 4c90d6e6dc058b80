-- PURPOSE  Return members: with the next due point, without one, for a retry, or unstarted.
-- KEYS     the constant list
-- ARGV     channel, rows as JSON: member, holder, what, ms, generation used, point_ms, where `what` is
--          'next'    its next point is point_ms, it wakes at ms
--          'drop'    it has no next point
--          'retry'   an attempt failed: it comes due again after ms, with the same point; the attempt is counted
--          'release' it did not start: it comes due again after ms; 0: as if it had not been claimed
--          'lapsed'  like 'release', and the next claim sees, as this one did, that an earlier lease ran out
-- RETURNS  JSON, see Note [Values as one JSON text]: now_ms, head_ms | '', then per member:
--          1 applied, 2 applied but edited in the meantime ('next' and 'drop' only:
--          score = now, point kept), 0 no longer the caller's
-- COST     O(members · log N)
-- ATOMIC BECAUSE the fence must hold for the whole move, and no edit may come between comparison and move.
call('HDEL', ATTEMPTS, '') -- see Note [Begin with a write that needs no memory] in renew.lua
local now = server_ms()
local before, rows, members, holders = head(now), named()
local stored = #members > 0 and call('HMGET', GEN, unpack(members))
local reply, scores, points, generations = {int(now), ''}, {}, {}, {}
local waiting, moved, gone, lapsed = {}, {}, {}, {}
for i, row in ipairs(rows) do
  local member, holder, what, ms, used, point = unpack(row)
  local known, result = whole(stored[i]) or 0, 1
  if holders[i] ~= holder then
    result = 0
  elseif what == 'next' or what == 'drop' then
    if known > used then
      -- Edited during the lease: wake now, to be judged under the new definition.
      result, moved[#moved + 1] = 2, member
      append(scores, now, member)
    elseif what == 'drop' then
      gone[#gone + 1] = member
    else
      moved[#moved + 1] = member
      append(scores, ms, member)
      append(points, member, int(point))
      if known < used then append(generations, member, int(used)) end
    end
  else
    waiting[#waiting + 1] = member
    if what == 'retry' then
      call('HSET', ATTEMPTS, member, int((whole(call('HGET', ATTEMPTS, member)) or 0) + 1))
    elseif what == 'lapsed' then
      lapsed[#lapsed + 1] = member
    end
    -- A member without attempts that comes back immediately stays ahead of those that came due later.
    local keeps = ms == 0 and call('HEXISTS', ATTEMPTS, member) == 0
    append(scores, ms + math.min(now, keeps and whole(call('HGET', POINT, member)) or now), member)
  end
  reply[i + 2] = result
end
if #points > 0 then call('HSET', POINT, unpack(points)) end
if #scores > 0 then place(scores, now) end
if #generations > 0 then call('HSET', GEN, unpack(generations)) end
forget(moved, LEASE, ATTEMPTS)
forget(waiting, LEASE)
-- '-' matches no worker. The caller's name would still match its late renewal.
for _, member in ipairs(lapsed) do call('HSET', LEASE, member, '-') end
if #gone > 0 then drop(gone) end
reply[2] = head(now)
hint(tonumber(reply[2]) or math.huge, before, ARGV[1])
return cjson.encode(reply)
