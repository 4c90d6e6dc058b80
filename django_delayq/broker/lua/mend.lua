-- PURPOSE  Give members a score again that lost it, or have one that no member can have.
-- KEYS     the constant list
-- ARGV     channel, shard, lease_ms, then the members
-- RETURNS  how many were mended; a member without a point and a score is not there
-- COST     O(members · log N)
-- ATOMIC BECAUSE a claim, a renewal or a settlement may give one of them a score at the same time.
local now = server_ms()
local before, members, scores, mended = head(now), {}, {}, 0
for i = 4, #ARGV do members[#members + 1] = ARGV[i] end
if #members == 0 then return 0 end
local known, points, holders =
  scores_of(members), call('HMGET', POINT, unpack(members)), call('HMGET', LEASE, unpack(members))
for i, member in ipairs(members) do
  local score = known[i]
  if (score or points[i]) and (not score or score > FARTHEST) then
    local to = math.min(whole(points[i]) or now, FARTHEST)
    -- A live holder renews its lease before that, a dead one does not.
    if holders[i] and holders[i] ~= '-' then to = now + tonumber(ARGV[3]) end
    append(scores, int(to), member)
    mended = mended + 1
  end
end
if #scores > 0 then place(scores, now) end
hint(now, before, ARGV[1], ARGV[2])
return mended
