//! Nonlinear least squares.

/// Fits a model by the Levenberg-Marquardt method. `knobs`: number of parameters; `step`: change of
/// a parameter for the numerical derivative. The fit ends after a maximal number of steps, or when
/// the sum of squares is below `enough`. `turned` returns the model with changed parameters;
/// `errors` returns the residuals.
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

/// Parameter changes that would make the errors zero if the model were linear; larger damping gives
/// smaller changes.
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

/// Solves linear equations by elimination, each a row with its right side last. The matrix must not
/// need pivoting.
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
    fn fitted_curve_passes_through_measurements() {
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
    fn parameter_without_effect_is_unchanged() {
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
