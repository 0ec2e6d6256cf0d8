//! The rank of a small matrix, by its singular values.
//!
//! One-sided Jacobi: pairs of columns are turned until all are at right angles; their lengths are then the singular values. For the few
//! dozen columns here that is a page of code, to full relative accuracy, where a linear-algebra crate would be the largest dependency.

use ndarray::Array2;

/// Singular values, largest first.
pub(crate) fn singular_values(matrix: &Array2<f64>) -> Vec<f64> {
    let mut columns: Vec<Vec<f64>> = matrix.columns().into_iter().map(|c| c.to_vec()).collect();
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
    for _ in 0..60 {
        let mut turned = false;
        for i in 0..columns.len() {
            for j in i + 1..columns.len() {
                let (a, b, c) = (dot(&columns[i], &columns[i]), dot(&columns[j], &columns[j]), dot(&columns[i], &columns[j]));
                if c.abs() <= 1e-16 * (a * b).sqrt() || c == 0.0 {
                    continue;
                }
                turned = true;
                let slope = (b - a) / (2.0 * c);
                let tangent = slope.signum() / (slope.abs() + (1.0 + slope * slope).sqrt());
                let cosine = 1.0 / (1.0 + tangent * tangent).sqrt();
                let sine = cosine * tangent;
                let (left, right) = columns.split_at_mut(j);
                for (x, y) in left[i].iter_mut().zip(&mut right[0]) {
                    (*x, *y) = (cosine * *x - sine * *y, sine * *x + cosine * *y);
                }
            }
        }
        if !turned {
            break;
        }
    }
    let mut values: Vec<f64> = columns.iter().map(|c| dot(c, c).sqrt()).collect();
    values.sort_by(|a, b| b.total_cmp(a));
    values.truncate(matrix.nrows().min(matrix.ncols()));
    values
}

/// Singular values above `largest * max(rows, columns) * epsilon`, the usual tolerance.
pub(crate) fn rank(matrix: &Array2<f64>) -> usize {
    let values = singular_values(matrix);
    let size = matrix.nrows().max(matrix.ncols()) as f64;
    let tolerance = values.first().copied().unwrap_or(0.0) * size * f64::EPSILON;
    values.iter().filter(|&&v| v > tolerance).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::array;

    #[test]
    fn singular_values_of_known_matrices() {
        let near = |got: Vec<f64>, known: &[f64]| {
            assert_eq!(got.len(), known.len());
            assert!(got.iter().zip(known).all(|(a, b)| (a - b).abs() < 1e-12), "{got:?} instead of {known:?}");
        };
        near(singular_values(&array![[3.0, 0.0], [4.0, 5.0]]), &[45f64.sqrt(), 5f64.sqrt()]);
        near(singular_values(&array![[0.0, 2.0, 0.0], [1.0, 0.0, 0.0]]), &[2.0, 1.0]);
        near(singular_values(&array![[1.0], [2.0], [2.0]]), &[3.0]);
    }

    #[test]
    fn rank_counts_independent_directions() {
        let tall = Array2::from_shape_fn((12, 3), |(i, j)| ((i * 7 + j * 3) % 11) as f64 - 5.0);
        let wide = Array2::from_shape_fn((3, 9), |(i, j)| ((i * 5 + j * j) % 7) as f64 - 2.0);
        assert_eq!(rank(&tall.dot(&wide)), 3);
        assert_eq!(rank(&Array2::from_elem((5, 4), 0.25)), 1);
        assert_eq!(rank(&Array2::zeros((4, 4))), 0);
        assert_eq!(rank(&Array2::eye(6)), 6);
    }
}
