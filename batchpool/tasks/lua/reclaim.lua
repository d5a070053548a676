-- Queue tasks again whose owner gave no sign for a lease; at the turn they had, so they come first.
-- ARGV: again, now, owner, model, lease, most losses, age of an idle consumer, then the ids that the
-- owner holds. Answers {'1' where there may be more, tasks taken, the record of each that was lost
-- too often}.
local now, owner, model = ARGV[2], ARGV[3], ARGV[4]
local held = {}
for at = 8, #ARGV do held[ARGV[at]] = true end
local taken, more, lost = 0, '0', {}
local key = stream_key(model)
if redis.call('EXISTS', key) == 1 then
  local found = redis.call('XAUTOCLAIM', key, GROUP, owner, ARGV[5], '0-0', 'COUNT', 256)
  if found[1] ~= '0-0' then more = '1' end
  for _, entry in ipairs(found[2]) do
    local id = entry[2][2]
    local task = task_key(id)
    local state = redis.call('HMGET', task, 'state', 'owner', 'turn')
    if state[1] ~= '1' then
      redis.call('XACK', key, GROUP, entry[1])
      redis.call('XDEL', key, entry[1])
    elseif not (state[2] == owner and held[id]) then
      taken = taken + 1
      if redis.call('HINCRBY', task, 'losses', 1) < tonumber(ARGV[6]) then
        redis.call('XACK', key, GROUP, entry[1])
        redis.call('XDEL', key, entry[1])
        redis.call('HSET', task, 'owner', '')
        enqueue(id, model, state[3])
        move(model, '1', '0')
      else
        local claim = redis.call('HINCRBY', task, 'claims', 1)
        redis.call('HSET', task, 'owner', owner, 'started', now)
        local record = redis.call('HMGET', task, 'attempts', 'losses', 'rows', 'input', 'answer',
          'submitted')
        lost[#lost + 1] = {id, claim, unpack(record)}
      end
    end
  end
  -- A consumer that goes while it has pending entries takes them with it.
  for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', key, GROUP)) do
    local facts = {}
    for i = 1, #consumer, 2 do facts[consumer[i]] = consumer[i + 1] end
    if facts.pending == 0 and facts.idle >= tonumber(ARGV[7]) and facts.name ~= owner then
      redis.call('XGROUP', 'DELCONSUMER', key, GROUP, facts.name)
    end
  end
end
return {more, taken, lost}
