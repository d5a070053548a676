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

local function open_task(caller, by)
  count('open', by)
  if redis.call('HINCRBY', BASE .. 'c', caller, by) <= 0 then
    redis.call('HDEL', BASE .. 'c', caller)
  end
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

-- task: {id, model, rows, input, answer, caller, principal, submitted, deadline, own, key, print}
local function create(task)
  local id, model, caller, key = task[1], task[2], task[6], task[11]
  local size = #task[4] + #task[5] + OVERHEAD
  redis.call('HSET', task_key(id), 'id', id, 'model', model, 'rows', task[3], 'input', task[4],
    'answer', task[5], 'caller', caller, 'principal', task[7], 'submitted', task[8],
    'deadline', task[9], 'own', task[10], 'key', key, 'print', task[12], 'attempts', '0',
    'claims', '0', 'losses', '0', 'size', size)
  join(id, model, caller, task[3], redis.call('HEXISTS', BASE .. 'c', caller) == 0)
  redis.call('ZADD', BASE .. 'open', task[8], id)
  redis.call('ZADD', BASE .. 'until', task[9], id)
  if key ~= '' then redis.call('SET', BASE .. 'i:' .. key, id) end
  count('0:' .. model, 1)
  count('bytes', size)
  open_task(caller, 1)
end

local function ended_name(id, state, size, model)
  return id .. ' ' .. state .. ' ' .. size .. ' ' .. model
end

-- The end of an open task that is taken out of its stream. A sweep drops it at its time; the time
-- to live, which is longer, is for the case that no box is left to sweep.
local function conclude(id, state, now, ttl, code, err, status, headers, body)
  local key = task_key(id)
  local task = redis.call('HMGET', key, 'state', 'model', 'caller', 'size', 'key')
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
  count('bytes', size - (tonumber(task[4]) or 0))
  open_task(task[3], -1)
end

local function forget_key(id, key)
  if key and key ~= '' and redis.call('GET', BASE .. 'i:' .. key) == id then
    redis.call('DEL', BASE .. 'i:' .. key)
  end
end

local function remove_letter(letter)
  local key = BASE .. 'l:' .. letter
  local size = redis.call('HGET', key, 'size')
  if not size then return false end
  redis.call('DEL', key)
  redis.call('ZREM', BASE .. 'dead', letter)
  count('letters', -1)
  count('letter_bytes', -size)
  count('bytes', -size)
  return true
end

-- Keep the input of a task that fails now as a dead letter; beyond the limits the oldest go.
local function bury(letter, id, code, err, facts, attempts, now, most, most_bytes)
  local task = redis.call('HMGET', task_key(id), 'model', 'attempts', 'rows', 'submitted', 'caller',
    'input', 'answer', 'principal')
  local size = #task[6] + #task[7] + #facts + OVERHEAD
  redis.call('HSET', BASE .. 'l:' .. letter, 'letter', letter, 'id', id, 'model', task[1],
    'code', code, 'error', err, 'attempts', (tonumber(task[2]) or 0) + attempts, 'rows', task[3],
    'submitted', task[4], 'died', now, 'caller', task[5], 'facts', facts, 'input', task[6],
    'answer', task[7], 'principal', task[8], 'size', size)
  redis.call('ZADD', BASE .. 'dead', letter, letter)
  count('letters', 1)
  count('letter_bytes', size)
  count('bytes', size)
  local kept = redis.call('ZCARD', BASE .. 'dead')
  while kept > 1 and (kept > tonumber(most)
      or tonumber(redis.call('HGET', COUNTS, 'letter_bytes') or 0) > tonumber(most_bytes)) do
    remove_letter(redis.call('ZRANGE', BASE .. 'dead', 0, 0)[1])
    kept = kept - 1
  end
end
