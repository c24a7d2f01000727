-- Greedy Spill Evenly (Listing 2): a rank with load sends half of it to an idle rank, which it
-- looks for from the middle of the ranks above it downwards.

function metaload()
    return IWR
end

function mdsload(i)
    return MDSs[i]["all"]
end

-- The listing looks for a busy rank and compares its table with a number: the text says idle.
function when()
    t = math.floor((#MDSs - whoami + 1) / 2) + whoami
    if t > #MDSs then
        t = whoami
    end
    while t ~= whoami and MDSs[t]["load"] >= .01 do
        t = t - 1
    end
    return MDSs[whoami]["load"] > .01 and MDSs[t]["load"] < .01
end

function where()
    targets[t] = MDSs[whoami]["load"] / 2
end

howmuch = { "half" }
