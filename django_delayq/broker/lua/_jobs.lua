-- Prelude of the scripts on jobs: their KEYS, always the same list, see broker/keys.py. No key name is built in Lua.
-- A job waits in JOBS until a time (ms: its start, its retry, the end of its lease), or in READY for its turn. Its
-- payload is there as long as it is. Turns are µs: that of becoming due, less PATIENCE for each step of its priority.
local DUE, EPOCH, FENCE, JOBS, READY, DEAD, PAYLOAD, HELD, PRIORITY, UNIQUE, RECLAIMS, TAKEN =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local COMMON = 12
-- Which KEYS of a claim have the leases of points, those of jobs, and the times of those.
local LEASES = {13, 8, 4}
-- Note [Priorities]
-- One step of priority is worth so many µs of waiting: what is due goes in order of priority, and nothing waits for ever
-- behind what is more urgent.
local PATIENCE = 60 * 1000 * 1000
-- The member of DUE that stands for all jobs, so that whoever looks for the head of the shard sees theirs too.
local POINTER = 'jobs'

-- The priorities of these members; only few have one.
local function priorities(members)
  if redis.call('HLEN', PRIORITY) == 0 then return {} end
  return redis.call('HMGET', PRIORITY, unpack(members))
end

-- A priority as Django knows it, 0 for none and for garbage.
local function rank(text)
  local number = tonumber(text or '')
  return number and number >= -100 and number <= 100 and number or 0
end

local function turn(became_due_us, priority) return became_due_us - rank(priority) * PATIENCE end

-- Since when the job whose turn is next is due, in ms; nil where none is ready.
local function ready_since()
  local first = redis.call('ZRANGE', READY, 0, 0, 'WITHSCORES')
  if first[1] then return math.max(0, (tonumber(first[2]) + rank(priorities({first[1]})[1]) * PATIENCE) / 1000) end
end

-- Keep POINTER at the head of the jobs: the first turn's time where something is ready, else the first time of JOBS.
-- Only a claim moves it back while something is ready: who waits for others to claim would not see that they did not.
-- Returns its time, if any.
local function point(claimed, now)
  local since, head = ready_since(), tonumber(redis.call('ZRANGE', JOBS, 0, 0, 'WITHSCORES')[2] or '')
  if since then
    head = math.min(head or now, math.floor(since), now)
    local known = not claimed and tonumber(redis.call('ZSCORE', DUE, POINTER) or '')
    if known and known < head then head = known end
  end
  if head then
    redis.call('ZADD', DUE, string.format('%.0f', head), POINTER)
  else
    redis.call('ZREM', DUE, POINTER)
  end
  return head
end

-- Let members wait until a time in ms, by now: those whose time has come take their turn.
local function await(members, wakes, now_us)
  local ready, later, ranks = {}, {}, priorities(members)
  for i, member in ipairs(members) do
    local list = later
    local score = wakes[i]
    if wakes[i] * 1000 <= now_us then list, score = ready, turn(now_us + i, ranks[i]) end
    list[#list + 1], list[#list + 2] = string.format('%.0f', score), member
  end
  redis.call('ZREM', READY, unpack(members))
  redis.call('ZREM', JOBS, unpack(members))
  if #ready > 0 then redis.call('ZADD', READY, unpack(ready)) end
  if #later > 0 then redis.call('ZADD', JOBS, unpack(later)) end
end

-- A unique key is 'k…' -> member while that one waits, and member -> 'k…' as long as it is there.
local function give_up_key(member)
  local key = redis.call('HGET', UNIQUE, member)
  if key and redis.call('HGET', UNIQUE, key) == member then redis.call('HDEL', UNIQUE, key) end
  return key
end

local function take_key_again(member)
  local key = redis.call('HGET', UNIQUE, member)
  if key then redis.call('HSETNX', UNIQUE, key, member) end
end

-- Take a key that no job has which is there; say whether it was taken.
local function take_key(member, key)
  local standing = redis.call('HGET', UNIQUE, key)
  if standing and standing ~= member and redis.call('HEXISTS', PAYLOAD, standing) == 1 then return false end
  redis.call('HSET', UNIQUE, key, member, member, key)
  return true
end

-- Forget members, but for the payloads of dead ones.
local function forget(members, dead)
  redis.call('ZREM', JOBS, unpack(members))
  redis.call('ZREM', READY, unpack(members))
  if redis.call('HLEN', UNIQUE) > 0 then
    for _, member in ipairs(members) do
      if give_up_key(member) then redis.call('HDEL', UNIQUE, member) end
    end
  end
  for _, key in ipairs({PRIORITY, RECLAIMS, HELD, not dead and PAYLOAD or nil}) do redis.call('HDEL', key, unpack(members)) end
end

-- Forget the oldest dead jobs: those that are too old or too many, up to `limit` of them.
local function forget_dead(now, ms, most, limit)
  local old = redis.call('ZRANGE', DEAD, '-inf', string.format('%.0f', now - ms), 'BYSCORE', 'LIMIT', 0, limit)
  local surplus = math.min(limit, redis.call('ZCARD', DEAD) - most)
  if surplus > #old then old = redis.call('ZRANGE', DEAD, 0, surplus - 1) end
  if #old > 0 then
    redis.call('ZREM', DEAD, unpack(old))
    redis.call('HDEL', PAYLOAD, unpack(old))
  end
end
