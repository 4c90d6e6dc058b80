-- Prelude of the scripts on points: their KEYS, always the same list, see broker/keys.py. No key name is built in Lua.
local DUE, POINT, GEN, LEASE, FENCE, ATTEMPTS, JOURNAL, EPOCH =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
-- The largest score: the last millisecond of the year 9999.
local FARTHEST = 253402300799999

-- Count members with an impossible score. Members that lost their score show as fewer members than points. No script
-- leaves either behind.
local function astray() return redis.call('ZCOUNT', DUE, '(' .. string.format('%.0f', FARTHEST), '+inf') end

-- Which KEYS of a claim have the leases of points, those of jobs, and the times of those.
local LEASES = {4, 9, 10}

-- What stands for the jobs keeps its score: here it is garbage, beside it the jobs wait.
local function drop(members)
  for _, key in ipairs({POINT, GEN, LEASE, ATTEMPTS}) do redis.call('HDEL', key, unpack(members)) end
  for i, member in ipairs(members) do
    if member == 'jobs' then members[i] = '' end
  end
  redis.call('ZREM', DUE, unpack(members))
end
