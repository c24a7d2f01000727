//! Changes a model until what it comes to is as near as can be to what it should.

/// Fits a model by Levenberg's and Marquardt's method. It has so many `knobs`; each is turned by `step` to see what that changes; there are at
/// most so many steps, and none when the sum of squares is below `enough`. `turned`: the model with its knobs turned by so much. `errors`: what is
/// to become nothing.
pub fn fit<M, E>(
    model: M,
    (knobs, step, most, enough): (usize, f64, usize, f64),
    turned: impl Fn(&M, &[f64]) -> M,
    errors: impl Fn(&M) -> Result<Vec<f64>, E>,
) -> Result<M, E> {
    let mut best = model;
    let mut off = errors(&best)?;
    let mut damping = 1e-2;
    for _ in 0..most {
        if square(&off) <= enough {
            break;
        }
        let mut slopes = Vec::with_capacity(knobs);
        for knob in 0..knobs {
            let by: Vec<_> = (0..knobs).map(|at| if at == knob { step } else { 0.0 }).collect();
            let moved = errors(&turned(&best, &by))?;
            slopes.push(moved.iter().zip(&off).map(|(new, old)| (new - old) / step).collect::<Vec<_>>());
        }
        let mut is_better = false;
        while !is_better && damping < 1e4 {
            let next = turned(&best, &damped(&slopes, &off, damping));
            let errors = errors(&next)?;
            is_better = square(&errors) < square(&off);
            if is_better {
                (best, off) = (next, errors);
            }
            damping *= if is_better { 0.1 } else { 10.0 };
        }
        if !is_better {
            break;
        }
    }
    Ok(best)
}

fn square(errors: &[f64]) -> f64 {
    errors.iter().map(|error| error * error).sum()
}

/// By how much knobs are to be turned so that errors become nothing, if what they do were linear; the less the more that is damped.
fn damped(slopes: &[Vec<f64>], errors: &[f64], damping: f64) -> Vec<f64> {
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let mut rows: Vec<Vec<f64>> = slopes
        .iter()
        .map(|of| {
            let mut row: Vec<_> = slopes.iter().map(|other| product(of, other)).collect();
            row.push(-product(of, errors));
            row
        })
        .collect();
    for (at, row) in rows.iter_mut().enumerate() {
        row[at] = (row[at] * (1.0 + damping)).max(f64::MIN_POSITIVE);
    }
    solved(rows)
}

/// Solves linear equations, each a row with its right side last, by elimination. They are of a matrix that needs no pivots.
fn solved(mut rows: Vec<Vec<f64>>) -> Vec<f64> {
    for at in 0..rows.len() {
        let pivot = rows[at].clone();
        for (_, row) in rows.iter_mut().enumerate().filter(|(other, _)| *other != at) {
            let factor = row[at] / pivot[at];
            row.iter_mut().zip(&pivot).for_each(|(value, of)| *value -= factor * of);
        }
    }
    rows.iter().enumerate().map(|(at, row)| row[rows.len()] / row[at]).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn equations_are_solved() {
        let rows = vec![vec![4.0, 1.0, 0.0, 6.0], vec![1.0, 3.0, 1.0, 10.0], vec![0.0, 1.0, 2.0, 8.0]];
        for (found, expected) in solved(rows).iter().zip([1.0, 2.0, 3.0]) {
            assert!((found - expected).abs() < 1e-9, "{found}");
        }
    }

    #[test]
    fn a_curve_is_fitted_through_what_it_was_measured_at() {
        let curve = |[a, b, c]: &[f64; 3], x: f64| a * (b * x).exp() + c;
        let real = [2.0, -0.5, 1.0];
        let errors = |model: &[f64; 3]| -> Result<Vec<f64>, ()> {
            Ok((0..8).map(|x| curve(model, x.into()) - curve(&real, x.into())).collect())
        };
        let turned = |model: &[f64; 3], by: &[f64]| [model[0] + by[0], model[1] + by[1], model[2] + by[2]];
        let found = fit([1.0, -1.0, 0.0], (3, 1e-4, 100, 1e-12), turned, errors).unwrap();
        for (found, expected) in found.iter().zip(real) {
            assert!((found - expected).abs() < 1e-3, "{found}");
        }
        assert_eq!(fit((), (1, 1.0, 9, 0.0), |(), _| (), |()| Err(5)), Err(5));
    }

    #[test]
    fn what_changes_nothing_is_left_alone() {
        let found = fit(
            [0.0, 7.0],
            (2, 0.1, 9, 1e-9),
            |model, by| [model[0] + by[0], model[1] + by[1]],
            |model| Ok::<_, ()>(vec![model[0] - 3.0, 2.0 * model[0] - 6.0]),
        );
        let [first, second] = found.unwrap();
        assert!((first - 3.0).abs() < 1e-3 && second == 7.0, "{first} {second}");
    }
}
