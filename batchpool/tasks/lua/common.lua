-- What all scripts share. A script is the body of a function that each.lua calls once for each of
-- KEYS, with its part of the arguments as ARGV. COUNTS is that key, mostly the hash of counts of a
-- partition; the tag in it is that of every key which the body names, so all of them lie in one slot
-- of a cluster. ARGV[1] is '1' where the same call was sent before and nobody knows what became of it.
local COUNTS, BASE
local OVERHEAD = 2400 -- bytes of memory of a record beside its bodies, about
local LINES_MOST = 1024 -- beside those of callers who have tasks
local WORDS_MOST = 1000 -- of one command: Lua unpacks no more than some thousand
local LARGEST = 2 ^ 53
local FORM = {'id', 'state', 'model', 'attempts', 'submitted', 'started', 'finished', 'code', 'error'}

-- All names below BASE are ours. A value of another type there was written by somebody else in the
-- place of ours; were it kept, it would fail every call of its partition.
local function call(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) == 'table' and reply.err then
    if not string.find(reply.err, 'WRONGTYPE', 1, true) then error(reply) end
    redis.log(redis.LOG_WARNING, 'batchpool drops ' .. key .. ', which has a value of a foreign type')
    redis.call('UNLINK', key)
    return redis.call(command, key, ...)
  end
  return reply
end

-- A field as a whole number of zero or more; 0 for one that is not there, or is none.
local function whole(value)
  local n = tonumber(value)
  if n and n >= 0 and n <= LARGEST then return math.floor(n) end
  return 0
end

local function task_key(id) return BASE .. 't:' .. id end
local function run_key(model) return BASE .. 'run:' .. model end
local function origins_key(model) return BASE .. 'q:' .. model end
local function line_key(model, origin) return BASE .. 'q:' .. model .. ':' .. origin end
local function ends_key(model, origin) return BASE .. 'ends:' .. model .. ':' .. origin end
local function at_key(model) return BASE .. 'at:' .. model end
local function left_key(model) return BASE .. 'left:' .. model end
local function now_key(model) return BASE .. 'turn:' .. model end
local function old_key(model) return BASE .. 'w:' .. model end -- of boxes of version 3

-- The server's time (ms), by which claims are late: the clocks of boxes differ.
local function server_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Changes of counts and of sorted sets, which `write` makes when a body has ended: a command costs
-- more than a member of it.
local changes

local function begin()
  changes = {counts = {}, open_of = {}, bytes_of = {}, added = {}, removed = {}, lines = {}, left = {}}
end

local function count(name, by)
  changes.counts[name] = (changes.counts[name] or 0) + by
end

local function counted(name)
  return (tonumber(call('HGET', COUNTS, name)) or 0) + (changes.counts[name] or 0)
end

local function move(model, before, after)
  count(before .. ':' .. model, -1)
  count(after .. ':' .. model, 1)
end

-- The origin of a task, whose share it takes; a box of an earlier release keeps callers alone.
local function origin_of(origin, caller)
  return origin and origin ~= '' and origin or caller
end

local function open_task(origin, by)
  count('open', by)
  changes.open_of[origin] = (changes.open_of[origin] or 0) + by
end

local function hold(origin, by)
  count('bytes', by)
  changes.bytes_of[origin] = (changes.bytes_of[origin] or 0) + by
end

local function words_of(kind, key)
  local found = changes[kind][key]
  if not found then
    found = {}
    changes[kind][key] = found
  end
  return found
end

local function add(key, score, member)
  local words = words_of('added', key)
  words[#words + 1] = score
  words[#words + 1] = member
end

local function remove(key, member)
  local words = words_of('removed', key)
  words[#words + 1] = member
end

-- Nothing of an origin waits any more. turn: at which it would be next. Where nothing waits at all a
-- model begins anew.
local function leave(model, origin, turn)
  call('ZREM', origins_key(model), origin)
  call('UNLINK', line_key(model, origin), ends_key(model, origin))
  call('HDEL', at_key(model), origin)
  if call('ZCARD', origins_key(model)) == 0 then
    call('UNLINK', left_key(model), now_key(model), at_key(model))
  elseif turn > (tonumber(call('GET', now_key(model)) or 0) or 0) then
    call('ZADD', left_key(model), turn, origin)
  end
end

local function in_parts(command, key, words)
  for at = 1, #words, WORDS_MOST do
    call(command, key, unpack(words, at, math.min(at + WORDS_MOST - 1, #words)))
  end
end

-- The hash is without zeros, so that it stays small. A count that is none starts anew.
local function increase(key, name, by, least)
  local found = redis.pcall('HINCRBY', key, name, by)
  if type(found) == 'table' then
    call('HDEL', key, name)
    found = redis.call('HINCRBY', key, name, by)
  end
  if found == 0 or found < least then redis.call('HDEL', key, name) end
  return found
end

local function increase_all(key, changed, least)
  for name, by in pairs(changed) do
    if by ~= 0 then increase(key, name, by, least) end
  end
end

local function write()
  for key, words in pairs(changes.removed) do in_parts('ZREM', key, words) end
  for line, place in pairs(changes.left) do
    local turn = call('ZCARD', line) == 0 and call('ZSCORE', origins_key(place.model), place.origin)
    if turn then leave(place.model, place.origin, tonumber(turn)) end
  end
  for line, place in pairs(changes.lines) do
    -- Lines of callers who took their tasks back end with the next claims. Where there are none,
    -- callers with names that nobody has had before would fill the memory.
    local key = ends_key(place.model, place.origin)
    if place.waits and call('ZCARD', key) > 2 * call('ZCARD', line) + LINES_MOST then
      call('UNLINK', key)
    end
    for caller, turn in pairs(place.ends) do add(key, turn, caller) end
  end
  for key, words in pairs(changes.added) do in_parts('ZADD', key, words) end
  local open = changes.counts.open or 0
  changes.counts.open = nil
  increase_all(COUNTS, changes.counts, -LARGEST)
  -- Where no task is open nobody has any, whatever boxes of earlier releases have left here.
  if open ~= 0 and increase(COUNTS, 'open', open, -LARGEST) == 0 then
    call('UNLINK', BASE .. 'c')
  else
    increase_all(BASE .. 'c', changes.open_of, 0)
  end
  increase_all(BASE .. 'b', changes.bytes_of, 0)
  begin()
end

-- As with open tasks, where nothing but dead letters is left.
local function forget_holders()
  local bytes = call('HMGET', COUNTS, 'bytes', 'letter_bytes')
  if (bytes[1] or '0') == (bytes[2] or '0') then call('UNLINK', BASE .. 'b') end
end

-- The line of an origin, which joins those that wait where it is new.
local function line_of(model, origin)
  local key = line_key(model, origin)
  local line = changes.lines[key]
  if line then return line end
  line = {model = model, origin = origin, now = 0, ends = {}}
  line.waits = call('ZSCORE', origins_key(model), origin)
  if line.waits then
    line.now = tonumber(call('HGET', at_key(model), origin) or 0) or 0
  else
    local now = tonumber(call('GET', now_key(model)) or '')
    local own = now and tonumber(call('ZSCORE', left_key(model), origin) or 0)
    add(origins_key(model), now and math.max(now, own) or 0, origin)
  end
  changes.lines[key] = line
  return line
end

-- The turn at the end of a caller's line, within its origin, which these rows make longer;
-- batchpool/tasks/turns.py tells what turns are.
local function next_turn(model, origin, caller, rows)
  local line = line_of(model, origin)
  local turn = line.ends[caller]
  if not turn then
    turn = line.now
    if line.waits then
      turn = math.max(turn, tonumber(call('ZSCORE', ends_key(model, origin), caller) or 0))
    end
  end
  line.ends[caller] = turn + whole(rows)
  return turn
end

-- Queue a task at the end of its caller's line; task: as `record` has it.
local function join(id, task)
  local turn = next_turn(task.model, task.origin, task.caller, task.rows)
  add(line_key(task.model, task.origin), turn, id)
  call('HSET', task_key(id), 'state', '0', 'which', 'q')
end

-- Queue a task before all others of its origin.
local function put_first(id, task)
  local line = line_of(task.model, task.origin)
  add(line_key(task.model, task.origin), line.now, id)
  call('HSET', task_key(id), 'state', '0', 'which', 'q')
end

-- The fields of a task that its changes need; state is false where there is none.
local function record(id)
  local found = call('HMGET', task_key(id), 'state', 'model', 'caller', 'size', 'key', 'which',
    'claims', 'owner', 'rows', 'attempts', 'origin')
  return {state = found[1], model = found[2] or '', caller = found[3] or '', size = whole(found[4]),
    key = found[5] or '', which = found[6] or 'q', claims = found[7], owner = found[8],
    rows = found[9], attempts = whole(found[10]), origin = origin_of(found[11], found[3] or '')}
end

-- Take a task out of where it waits or runs.
local function take_out(id, task)
  if task.which == 'q' then
    local line = line_key(task.model, task.origin)
    remove(line, id)
    changes.left[line] = {model = task.model, origin = task.origin}
  else
    remove(BASE .. task.which .. ':' .. task.model, id)
  end
end

-- task: {id, model, rows, input, answer, caller, principal, submitted, deadline, own, key, print,
-- origin}
local function create(task)
  local id, model, caller, key = task[1], task[2], task[6], task[11]
  local size = #task[4] + #task[5] + OVERHEAD
  local origin = origin_of(task[13], caller)
  local turn = next_turn(model, origin, caller, task[3])
  call('HSET', task_key(id), 'id', id, 'model', model, 'rows', task[3], 'input', task[4],
    'answer', task[5], 'caller', caller, 'principal', task[7], 'submitted', task[8],
    'deadline', task[9], 'own', task[10], 'key', key, 'print', task[12], 'size', size,
    'state', '0', 'which', 'q', 'origin', origin)
  add(line_key(model, origin), turn, id)
  add(BASE .. 'open', task[8], id)
  add(BASE .. 'until', task[9], id)
  if key ~= '' then call('SET', BASE .. 'i:' .. key, id) end
  count('0:' .. model, 1)
  hold(origin, size)
  open_task(origin, 1)
end

local function ended_name(id, state, size, model)
  return id .. ' ' .. state .. ' ' .. size .. ' ' .. model
end

-- The end of an open task that is taken out of where it is. A sweep drops it at its time; the time
-- to live, which is longer, is for the case that no box is left to sweep.
local function conclude(id, task, state, now, ttl, attempts, code, err, status, headers, body)
  local key = task_key(id)
  local size = #body + #err + OVERHEAD
  call('HDEL', key, 'input', 'answer', 'which', 'turn') -- the last one of boxes of version 3
  local words = {'state', state, 'finished', now, 'status', status, 'headers', headers, 'body', body,
    'size', size, 'length', #body, 'attempts', attempts}
  if code ~= '' then
    for _, word in ipairs({'code', code, 'error', err}) do words[#words + 1] = word end
  end
  call('HSET', key, unpack(words))
  local keep = ttl + 60000
  call('PEXPIRE', key, keep)
  if task.key ~= '' then call('PEXPIRE', BASE .. 'i:' .. task.key, keep) end
  take_out(id, task)
  remove(BASE .. 'open', id)
  remove(BASE .. 'until', id)
  add(BASE .. 'ended', now + ttl, ended_name(id, state, size, task.model))
  move(task.model, task.state, state)
  hold(task.origin, size - task.size)
  open_task(task.origin, -1)
end

local function forget_key(id, key)
  if key and key ~= '' and call('GET', BASE .. 'i:' .. key) == id then
    call('DEL', BASE .. 'i:' .. key)
  end
end

local function letters_key(origin) return BASE .. 'dead_of:' .. origin end

-- holder: among whose letters it was found, nil where nobody looked there.
local function remove_letter(letter, holder)
  local key, holders = BASE .. 'l:' .. letter, BASE .. 'holders'
  local kept = call('HMGET', key, 'size', 'origin', 'caller')
  local size, origin = whole(kept[1]), origin_of(kept[2], kept[3] or '')
  call('ZREM', BASE .. 'dead', letter)
  if holder then call('ZREM', letters_key(holder), letter) end
  if not kept[1] then return false end -- the server has evicted it
  call('DEL', key)
  call('ZREM', letters_key(origin), letter)
  if tonumber(call('ZINCRBY', holders, -size, origin)) <= 0 then call('ZREM', holders, origin) end
  count('letters', -1)
  count('letter_bytes', -size)
  count('bytes', -size)
  return true
end

-- The oldest letter of the origin with most bytes of them, and that origin; of all, where only boxes
-- of earlier releases have kept some.
local function oldest_of_most()
  while true do
    local most = call('ZREVRANGE', BASE .. 'holders', 0, 0)[1]
    if not most then return call('ZRANGE', BASE .. 'dead', 0, 0)[1] end
    local oldest = call('ZRANGE', letters_key(most), 0, 0)[1]
    if oldest then return oldest, most end
    call('ZREM', BASE .. 'holders', most)
  end
end

-- Keep the input of a task that fails now as a dead letter; beyond the limits the oldest go of who
-- has most.
local function bury(letter, id, code, err, facts, attempts, now, most, most_bytes)
  local task = call('HMGET', task_key(id), 'model', 'rows', 'submitted', 'caller', 'input', 'answer',
    'principal', 'origin')
  for at = 1, 7 do task[at] = task[at] or '' end
  local origin = origin_of(task[8], task[4])
  local size = #task[5] + #task[6] + #facts + OVERHEAD
  call('HSET', BASE .. 'l:' .. letter, 'letter', letter, 'id', id, 'model', task[1],
    'code', code, 'error', err, 'attempts', attempts, 'rows', task[2],
    'submitted', task[3], 'died', now, 'caller', task[4], 'facts', facts, 'input', task[5],
    'answer', task[6], 'principal', task[7], 'size', size, 'origin', origin)
  call('ZADD', letters_key(origin), letter, letter)
  call('ZINCRBY', BASE .. 'holders', size, origin)
  call('ZADD', BASE .. 'dead', letter, letter)
  count('letters', 1)
  count('letter_bytes', size)
  count('bytes', size)
  local kept = call('ZCARD', BASE .. 'dead')
  while kept > 1 and (kept > tonumber(most) or counted('letter_bytes') > tonumber(most_bytes)) do
    local oldest, holder = oldest_of_most()
    remove_letter(oldest, holder)
    kept = call('ZCARD', BASE .. 'dead')
  end
end
