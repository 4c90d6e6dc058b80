-- PURPOSE  What people do to one job: cancel it, put it off or forward, revive it, delete it.
-- KEYS     the constant list of jobs, then the job's result
-- ARGV     channel, shard, member, what, ms, text, unique | '', where `what` is
--          'cancel'  a waiting one: forget it; text is its result, for ms
--          'move'    a waiting one: let it wait until ms
--          'leave'   one that is elsewhere too: forget it here, unless its lease is alive
--          'revive'  a dead one: text becomes its payload, and it is ready; ms is its priority, `unique` its unique key
--          'bury'    a dead one: forget it and its result
-- RETURNS  'OK', 'HELD' (a worker has it), 'DEAD' (it is), 'WAITING' (it is not dead), 'GONE' (there is no such job),
--          'TAKEN' (another job that waits has its unique key)
-- COST     O(log N)
-- ATOMIC BECAUSE a claim may come between the look and the change.
local us, before, member, what = server_us(), head(), ARGV[3], ARGV[4]
local now = math.floor(us / 1000)
local function answer()
  if call('HEXISTS', PAYLOAD, member) == 0 then return 'GONE' end
  if call('ZSCORE', DEAD, member) then
    if what == 'revive' then
      if ARGV[7] ~= '' and not take_key(member, 'k' .. ARGV[7]) then return 'TAKEN' end
      call('ZREM', DEAD, member)
      call('HSET', PAYLOAD, member, ARGV[6])
      if ARGV[5] ~= '0' then call('HSET', PRIORITY, member, ARGV[5]) end
      await({member}, {now}, us)
    elseif what == 'bury' then
      call('ZREM', DEAD, member)
      call('HDEL', PAYLOAD, member)
      call('DEL', KEYS[COMMON + 1])
    else
      return 'DEAD'
    end
  elseif what == 'revive' or what == 'bury' then
    return 'WAITING'
  elseif what == 'leave' and (tonumber(call('ZSCORE', JOBS, member) or '') or 0) <= now then
    forget({member})
  elseif (call('HGET', HELD, member) or '-') ~= '-' then -- '-': handed back, and nobody's
    return 'HELD'
  elseif what == 'cancel' or what == 'leave' then
    forget({member})
    if what == 'cancel' and ARGV[6] ~= '' then call('SET', KEYS[COMMON + 1], ARGV[6], 'PX', ARGV[5]) end
  else
    await({member}, {tonumber(ARGV[5])}, us)
  end
  return 'OK'
end
local reply = answer()
point(false, now)
hint(before, ARGV[1], ARGV[2])
return reply
