-- PURPOSE  Give jobs back: done, dead, to be tried again, or unstarted.
-- KEYS     the constant list of jobs, the list of those that have succeeded, then each job's result
-- ARGV     channel, shard, dead_ms (how long dead jobs are kept), dead_most (how many of them), done_most (how many of
--          those that have succeeded are listed),
--          then per job: member, holder (fence, space, worker), what, ms, text, callback ('' | 'member priority payload'
--          of a job that is added to this shard with the end of this one), where `what` is
--          'done'    forget it; text, unless empty, is its result, for ms; one of several lines is listed
--          'dead'    keep text as its payload, among the dead
--          'retry'   keep text as its payload and let it wait for ms
--          'release' it did not start: let it wait for ms; text 'lapsed': the next claim shall see, as this one did,
--                    that a lease ran out before; 'begun': so too, and the take-over that was counted did not begin
-- RETURNS  JSON, see Note [One text]: now_ms, head_ms | '', then per job: 1 applied, 0 not the caller's any more
-- COST     O(jobs · log N)
-- ATOMIC BECAUSE the fence must hold for the whole move, a job must not be there beside its result, and what follows an
--          end must be there with it.
call('HDEL', RECLAIMS, '') -- see Note [Out of memory] in renew.lua
local us, before, members, own = server_us(), head(), named(HELD, 6, 6)
local now = math.floor(us / 1000)
local reply, gone, dead, died, waiting, wakes, lapsed, listed = {int(now), ''}, {}, {}, {}, {}, {}, {}, {}
for i, member in ipairs(members) do
  local at = 6 * i
  local what, ms, text, callback = ARGV[at + 2], ARGV[at + 3], ARGV[at + 4], ARGV[at + 5]
  reply[i + 2] = 1
  if not own[i] then
    reply[i + 2] = 0
  elseif what == 'done' then
    gone[#gone + 1] = member
    if text ~= '' then
      call('SET', KEYS[COMMON + 1 + i], text, 'PX', ms)
      if string.find(text, '\n', 1, true) then append(listed, int(now), member) end
    end
  elseif what == 'dead' then
    dead[#dead + 1] = member
    append(died, int(now), member)
    call('HSET', PAYLOAD, member, text)
  else
    waiting[#waiting + 1], wakes[#wakes + 1] = member, now + tonumber(ms)
    if what == 'retry' then
      call('HSET', PAYLOAD, member, text)
      call('HDEL', RECLAIMS, member)
    end
    if text == 'begun' and what == 'release' then
      call('HSET', RECLAIMS, member, int(math.max(0, (whole(call('HGET', RECLAIMS, member)) or 0) - 1)))
    end
    if what == 'release' and text ~= '' then lapsed[#lapsed + 1] = member end
    take_key_again(member)
  end
  if callback ~= '' and own[i] then
    local added, priority, payload = string.match(callback, '^(%S+) (%-?%d+) (.*)$')
    waiting[#waiting + 1], wakes[#wakes + 1] = added, now
    call('HSET', PAYLOAD, added, payload)
    if priority ~= '0' then call('HSET', PRIORITY, added, priority) end
  end
end
-- The lease is given up last: where a key is damaged, the caller can settle once more after its repair.
if #listed > 0 then
  local done = KEYS[COMMON + 1]
  call('ZADD', done, unpack(listed))
  local surplus = call('ZCARD', done) - tonumber(ARGV[5])
  if surplus > 0 then call('ZREM', done, unpack(call('ZRANGE', done, 0, surplus - 1))) end
end
if #gone > 0 then forget(gone) end
if #dead > 0 then
  call('ZADD', DEAD, unpack(died))
  forget(dead, true)
  forget_dead(now, tonumber(ARGV[3]), tonumber(ARGV[4]), 100 + #dead) -- more than came, so that it ends
end
if #waiting > 0 then
  await(waiting, wakes, us)
  call('HDEL', HELD, unpack(waiting))
  -- A holder that nobody is: not the caller, whom a late renewal would still find.
  for _, member in ipairs(lapsed) do call('HSET', HELD, member, '-') end
end
point(false, now)
reply[2] = hint(before, ARGV[1], ARGV[2])
return cjson.encode(reply)
