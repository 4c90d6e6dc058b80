-- PURPOSE  Lease up to `limit` jobs whose turn it is, or repeat the reply to a request whose reply was lost.
-- KEYS     the constant list of jobs (TAKEN is the calling process' own), LEASE of the points
-- ARGV     limit, lease_ms, request (grows with each new claim of this process and shard), journal_ms, worker,
--          how many leases of both kinds may stand in the shard (Note [Limits]) | ''
-- RETURNS  JSON, see Note [One text]: now_ms, head_ms | '' | 'stale', epoch | '', fence | '', then per job:
--          member, lapsed ('0'; else an earlier lease ran out: of this holder, '1' or '-' where that is not known any
--          more), reclaims; and behind it each job's payload, as it stands there | nil
-- COST     O((limit + what came due) · log N), with a limit of leases also O(leases)
-- ATOMIC BECAUSE two workers must never hold a lease on one job, and the journal must tell exactly what was leased.
-- Note [Due first, then its turn]
-- Whatever has come due is moved to READY before anything is taken, at most PROMOTE at a time: so what is urgent goes
-- first however much became due before it.
local PROMOTE = 500
local now = server_ms()
local reply, payloads = {int(now), '', call('GET', EPOCH) or '', ''}, {}

local function ready(limit)
  local due = call('ZRANGE', JOBS, '-inf', int(now), 'BYSCORE', 'LIMIT', 0, PROMOTE, 'WITHSCORES')
  if #due > 0 then
    local names, turns = {}, {}
    for i = 1, #due, 2 do names[#names + 1] = due[i] end
    local ranks = priorities(names)
    for i, member in ipairs(names) do
      append(turns, int(turn((tonumber(due[2 * i]) or 0) * 1000, ranks[i])), member)
    end
    call('ZREM', JOBS, unpack(names))
    call('ZADD', READY, unpack(turns))
  end
  return call('ZRANGE', READY, 0, limit - 1)
end

local function tell(members)
  local reclaims = {}
  payloads = call('HMGET', PAYLOAD, unpack(members))
  if call('HLEN', RECLAIMS) > 0 then reclaims = call('HMGET', RECLAIMS, unpack(members)) end
  return function(i, lapsed) return {lapsed, reclaims[i] or '0'} end
end

local members, scores, fresh = claim(TAKEN, HELD, now, reply, ready, tell)
if members then
  if fresh and call('HLEN', UNIQUE) > 0 then
    for _, member in ipairs(members) do give_up_key(member) end
  end
  if #members > 0 then
    call('ZREM', READY, unpack(members))
    call('ZADD', JOBS, unpack(scores))
  end
  point(true, now)
  reply[2] = head()
end
return {cjson.encode(reply), unpack(payloads)}
