-- What all scripts share. KEYS[1] is the hash of counts of one partition; the tag in it is that of
-- every key here, so a script touches one slot of a cluster. ARGV[1] is '1' where the same call was
-- sent before and nobody knows what became of it.
local COUNTS = KEYS[1]
local BASE = string.sub(COUNTS, 1, -2)
local GROUP = 'bp'
local OVERHEAD = 2400 -- bytes of memory of a record beside its bodies, about
local LINES_MOST = 1024 -- beside those of callers who have tasks
local FORM = {'id', 'state', 'model', 'attempts', 'submitted', 'started', 'finished', 'code', 'error'}

local function task_key(id) return BASE .. 't:' .. id end
local function stream_key(model) return BASE .. 'run:' .. model end

-- The hash is without zeros, so that it stays small.
local function count(name, by)
  if redis.call('HINCRBY', COUNTS, name, by) == 0 then redis.call('HDEL', COUNTS, name) end
end

local function move(model, before, after)
  count(before .. ':' .. model, -1)
  count(after .. ':' .. model, 1)
end

local function add_to(name, origin, by)
  if origin and redis.call('HINCRBY', BASE .. name, origin, by) <= 0 then
    redis.call('HDEL', BASE .. name, origin)
  end
end

-- The origin of a task, whose share it takes; a box of an earlier release keeps callers alone.
local function origin_of(origin, caller)
  return origin and origin ~= '' and origin or caller
end

-- Where no task is open nobody has any, whatever boxes of earlier releases have left here.
local function open_task(origin, by)
  if redis.call('HINCRBY', COUNTS, 'open', by) == 0 then
    redis.call('HDEL', COUNTS, 'open')
    redis.call('UNLINK', BASE .. 'c')
  else
    add_to('c', origin, by)
  end
end

local function hold(origin, by)
  count('bytes', by)
  add_to('b', origin, by)
end

-- As in `open_task`, where nothing but dead letters is left.
local function forget_holders()
  local bytes = redis.call('HMGET', COUNTS, 'bytes', 'letter_bytes')
  if (bytes[1] or '0') == (bytes[2] or '0') then redis.call('UNLINK', BASE .. 'b') end
end

-- Where the tasks of a model are that wait in turns, sorted by their turn.
local function turns_key(model) return BASE .. 'w:' .. model end

-- Where nothing waits, all lines are empty.
local function forget_lines(model)
  if redis.call('EXISTS', turns_key(model)) == 0 then
    redis.call('UNLINK', BASE .. 'lines:' .. model)
  end
end

-- Queue a task at this turn.
local function enqueue(id, model, turn)
  redis.call('ZADD', turns_key(model), turn, id)
  redis.call('HSET', task_key(id), 'state', '0', 'which', 'w', 'entry', '', 'turn', turn)
end

-- Queue a task at the end of its caller's line, as batchpool/tasks/turns.py has it. An empty line, as
-- that of a caller who has no open task, begins where the tasks are that are claimed now.
local function join(id, model, caller, rows, is_idle)
  local lines = BASE .. 'lines:' .. model
  local turn = tonumber(redis.call('GET', BASE .. 'now:' .. model) or 0)
  if not is_idle then
    turn = math.max(turn, tonumber(redis.call('ZSCORE', lines, caller) or 0))
  end
  -- Lines of callers who took their tasks back end with the next claims. Where there are none, callers
  -- with names that nobody has had before would fill the memory.
  if redis.call('ZCARD', lines) > 2 * redis.call('ZCARD', turns_key(model)) + LINES_MOST then
    redis.call('UNLINK', lines)
  end
  redis.call('ZADD', lines, turn + rows, caller)
  enqueue(id, model, turn)
end

-- Take a task out of where it waits or runs; true if it was there.
local function take_out(id, which, entry, model)
  if which == 'run' then
    local key = stream_key(model)
    local pending = redis.call('XACK', key, GROUP, entry) == 1
    return redis.call('XDEL', key, entry) == 1 or pending
  end
  local was_there = redis.call('ZREM', BASE .. which .. ':' .. model, id) == 1
  if which == 'w' then forget_lines(model) end
  return was_there
end

-- task: {id, model, rows, input, answer, caller, principal, submitted, deadline, own, key, print, origin}
local function create(task)
  local id, model, caller, key = task[1], task[2], task[6], task[11]
  local size = #task[4] + #task[5] + OVERHEAD
  local origin = origin_of(task[13], caller)
  redis.call('HSET', task_key(id), 'id', id, 'model', model, 'rows', task[3], 'input', task[4],
    'answer', task[5], 'caller', caller, 'principal', task[7], 'submitted', task[8],
    'deadline', task[9], 'own', task[10], 'key', key, 'print', task[12], 'attempts', '0',
    'claims', '0', 'losses', '0', 'size', size, 'origin', origin)
  join(id, model, caller, task[3], redis.call('HEXISTS', BASE .. 'c', origin) == 0)
  redis.call('ZADD', BASE .. 'open', task[8], id)
  redis.call('ZADD', BASE .. 'until', task[9], id)
  if key ~= '' then redis.call('SET', BASE .. 'i:' .. key, id) end
  count('0:' .. model, 1)
  hold(origin, size)
  open_task(origin, 1)
end

local function ended_name(id, state, size, model)
  return id .. ' ' .. state .. ' ' .. size .. ' ' .. model
end

-- The end of an open task that is taken out of its stream. A sweep drops it at its time; the time
-- to live, which is longer, is for the case that no box is left to sweep.
local function conclude(id, state, now, ttl, code, err, status, headers, body)
  local key = task_key(id)
  local task = redis.call('HMGET', key, 'state', 'model', 'caller', 'size', 'key', 'origin')
  local origin = origin_of(task[6], task[3])
  local size = #body + #err + OVERHEAD
  redis.call('HDEL', key, 'input', 'answer', 'entry', 'which', 'turn')
  redis.call('HSET', key, 'state', state, 'finished', now, 'code', code, 'error', err,
    'status', status, 'headers', headers, 'body', body, 'size', size, 'length', #body)
  local keep = ttl + 60000
  redis.call('PEXPIRE', key, keep)
  if task[5] ~= '' then redis.call('PEXPIRE', BASE .. 'i:' .. task[5], keep) end
  redis.call('ZREM', BASE .. 'open', id)
  redis.call('ZREM', BASE .. 'until', id)
  redis.call('ZADD', BASE .. 'ended', now + ttl, ended_name(id, state, size, task[2]))
  move(task[2], task[1], state)
  hold(origin, size - (tonumber(task[4]) or 0))
  open_task(origin, -1)
end

local function forget_key(id, key)
  if key and key ~= '' and redis.call('GET', BASE .. 'i:' .. key) == id then
    redis.call('DEL', BASE .. 'i:' .. key)
  end
end

local function remove_letter(letter)
  local key = BASE .. 'l:' .. letter
  local kept = redis.call('HMGET', key, 'size', 'origin', 'caller')
  local size, origin = kept[1], origin_of(kept[2], kept[3])
  if not size then return false end
  redis.call('DEL', key)
  if origin then
    redis.call('ZREM', BASE .. 'dead_of:' .. origin, letter)
    if tonumber(redis.call('ZINCRBY', BASE .. 'holders', -size, origin)) <= 0 then
      redis.call('ZREM', BASE .. 'holders', origin)
    end
  end
  redis.call('ZREM', BASE .. 'dead', letter)
  count('letters', -1)
  count('letter_bytes', -size)
  count('bytes', -size)
  return true
end

-- The oldest letter of the origin with most bytes of them; of all, where only boxes of earlier
-- releases have kept some.
local function oldest_of_most()
  local most = redis.call('ZREVRANGE', BASE .. 'holders', 0, 0)[1]
  local oldest = most and redis.call('ZRANGE', BASE .. 'dead_of:' .. most, 0, 0)[1]
  return oldest or redis.call('ZRANGE', BASE .. 'dead', 0, 0)[1]
end

-- Keep the input of a task that fails now as a dead letter; beyond the limits the oldest go of who
-- has most.
local function bury(letter, id, code, err, facts, attempts, now, most, most_bytes)
  local task = redis.call('HMGET', task_key(id), 'model', 'attempts', 'rows', 'submitted', 'caller',
    'input', 'answer', 'principal', 'origin')
  local origin = origin_of(task[9], task[5])
  local size = #task[6] + #task[7] + #facts + OVERHEAD
  redis.call('HSET', BASE .. 'l:' .. letter, 'letter', letter, 'id', id, 'model', task[1],
    'code', code, 'error', err, 'attempts', (tonumber(task[2]) or 0) + attempts, 'rows', task[3],
    'submitted', task[4], 'died', now, 'caller', task[5], 'facts', facts, 'input', task[6],
    'answer', task[7], 'principal', task[8], 'size', size, 'origin', origin)
  redis.call('ZADD', BASE .. 'dead_of:' .. origin, letter, letter)
  redis.call('ZINCRBY', BASE .. 'holders', size, origin)
  redis.call('ZADD', BASE .. 'dead', letter, letter)
  count('letters', 1)
  count('letter_bytes', size)
  count('bytes', size)
  local kept = redis.call('ZCARD', BASE .. 'dead')
  while kept > 1 and (kept > tonumber(most)
      or tonumber(redis.call('HGET', COUNTS, 'letter_bytes') or 0) > tonumber(most_bytes)) do
    local oldest = oldest_of_most()
    if not remove_letter(oldest) then -- its record is evicted
      redis.call('ZREM', BASE .. 'dead', oldest)
      redis.call('ZREM', BASE .. 'dead_of:' .. origin, oldest)
    end
    kept = redis.call('ZCARD', BASE .. 'dead')
  end
end
