-- Completes the environment of a script; runs before it, outside its sandbox.
-- Returns the functions that the host calls.
local environment, state = ...

-- Locals, because a script may change what `math` contains.
local huge, read = math.huge, buffer.readf64

environment.max = math.max
environment.min = math.min

function environment.RDstate()
    return state
end

function environment.WRstate(value)
    local is_finite = type(value) == "number" and value > -huge and value < huge
    if type(value) ~= "boolean" and not is_finite then
        error("WRstate saves a finite number or a boolean", 2)
    end
    state = value
end

-- The thesis spells them in both ways.
environment.RDState = environment.RDstate
environment.WRState = environment.WRstate

setmetatable(environment, {
    __index = function(_, name)
        error("there is no variable `" .. name .. "`", 2)
    end,
})

local function set_time_series(count, points)
    local series = {}
    function series.size()
        return count
    end
    function series.get(_, i)
        if not (type(i) == "number" and i >= 1 and i <= count and i % 1 == 0) then
            error("the time series has values 1 to " .. count, 2)
        end
        return read(points, 16 * i - 16), read(points, 16 * i - 8)
    end
    function environment.timeseries()
        return series
    end
end

return environment.RDstate, set_time_series
