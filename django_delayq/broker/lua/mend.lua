-- PURPOSE  Give members a score again that lost it, or have one that no member can have.
-- KEYS     the constant list
-- ARGV     channel, shard, lease_ms, then the members
-- RETURNS  how many were mended; a member without a point and a score is not there
-- COST     O(members · log N)
-- ATOMIC BECAUSE a claim, a renewal or a settlement may give one of them a score at the same time.
local now, before, members, scores, mended = server_ms(), head(), {}, {}, 0
for i = 4, #ARGV do members[#members + 1] = ARGV[i] end
if #members == 0 then return 0 end
local known, points, holders =
  call('ZMSCORE', DUE, unpack(members)), call('HMGET', POINT, unpack(members)), call('HMGET', LEASE, unpack(members))
for i, member in ipairs(members) do
  local score = tonumber(known[i] or '')
  if member == 'jobs' then
    drop({member})
  elseif (score or points[i]) and (not score or score > FARTHEST) then
    local place = math.min(whole(points[i]) or now, FARTHEST)
    -- A live holder renews its lease before that, a dead one does not.
    if holders[i] and holders[i] ~= '-' then place = now + tonumber(ARGV[3]) end
    append(scores, int(place), member)
    mended = mended + 1
  end
end
-- The next claim of jobs gives theirs its score.
local jobs = tonumber(call('ZSCORE', DUE, 'jobs') or '')
if not jobs or jobs > FARTHEST then append(scores, int(now), 'jobs') end
if #scores > 0 then call('ZADD', DUE, unpack(scores)) end
hint(before, ARGV[1], ARGV[2])
return mended
