-- Evicts nothing.

function when()
    return false
end

function howmuch() end
