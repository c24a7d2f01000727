-- Adaptable (Listing 4), too aggressive (4.3.3): every rank above the mean seeks perfect
-- balance at each tick. Shows what a dwell time is for.

function metaload()
    return IWR + IRD
end

function mdsload(i)
    return MDSs[i]["all"]
end

function when()
    return MDSs[whoami]["load"] > total / #MDSs
end

function where()
    local mean = total / #MDSs
    for i = 1, #MDSs do
        if MDSs[i]["load"] < mean then
            targets[i] = mean - MDSs[i]["load"]
        end
    end
end

howmuch = { "half", "small_first", "big_first", "big_small" }
