
function metaload()
    return IWR + IRD
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
