//! A matrix product for the layers around attention: the `gemm` crate behind a safe door.
//!
//! ```text
//! dst[m, n] = lhs[m, k] rhs[k, n]        or        dst += lhs rhs
//! ```
//!
//! One thread computes one call, so that its bits depend on nothing else; callers share work out in pieces of their own choice.

use crate::simd::Real;
use gemm::Parallelism;
use ndarray::{ArrayView2, ArrayViewMut2};

/// What happens to the old contents of the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Write {
    /// They are forgotten.
    Replace,
    /// The product is added to them.
    Add,
}

/// `dst = lhs rhs`, or `dst += lhs rhs`, of any strides, on the calling thread.
///
/// ```
/// use ndarray::array;
/// use regard::matmul::{Write, matmul};
/// let mut dst = array![[1.0f32, 1.0]];
/// matmul(dst.view_mut(), Write::Add, array![[1.0f32, 2.0]].view(), array![[3.0f32, 4.0], [5.0, 6.0]].view());
/// assert_eq!(dst, array![[14.0, 17.0]]);
/// ```
///
/// # Panics
/// When the shapes do not fit together.
pub fn matmul<T: Real>(mut dst: ArrayViewMut2<'_, T>, write: Write, lhs: ArrayView2<'_, T>, rhs: ArrayView2<'_, T>) {
    let ((m, k), n) = (lhs.dim(), rhs.ncols());
    assert_eq!(rhs.nrows(), k, "lhs {:?} and rhs {:?} differ in depth", lhs.shape(), rhs.shape());
    assert_eq!(dst.dim(), (m, n), "dst {:?} is not the shape of the product", dst.shape());
    if m == 0 || n == 0 {
        return;
    }
    let (dst_rs, dst_cs) = (dst.strides()[0], dst.strides()[1]);
    let (lhs_rs, lhs_cs) = (lhs.strides()[0], lhs.strides()[1]);
    let (rhs_rs, rhs_cs) = (rhs.strides()[0], rhs.strides()[1]);
    let read = write == Write::Add;
    // SAFETY: the pointers, sizes and strides are those of views, whose elements are all inside their allocations; the sizes were
    // checked above to fit together; `dst` is exclusive and a mutable view has no two indices for one element. `Real` is f32 or f64,
    // for which `gemm` has code.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            dst.as_mut_ptr(),
            dst_cs,
            dst_rs,
            read,
            lhs.as_ptr(),
            lhs_cs,
            lhs_rs,
            rhs.as_ptr(),
            rhs_cs,
            rhs_rs,
            if read { T::ONE } else { T::ZERO },
            T::ONE,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::{Array2, s};

    fn numbers(rows: usize, cols: usize, seed: usize) -> Array2<f64> {
        Array2::from_shape_fn((rows, cols), |(i, j)| ((i * 37 + j * 11 + seed) % 17) as f64 - 8.0)
    }

    #[test]
    fn product_of_any_strides_is_the_sum_over_the_depth() {
        for (m, k, n) in [(1, 1, 1), (5, 7, 3), (33, 65, 17), (64, 0, 8), (1, 40, 9), (9, 40, 1)] {
            let (a, b, old) = (numbers(m, 2 * k, 1), numbers(n, k, 2), numbers(m, n, 3));
            let (a, b) = (a.slice(s![.., ..;2]), b.t());
            let expected = |i: usize, j: usize| (0..k).map(|d| a[[i, d]] * b[[d, j]]).sum::<f64>();
            let mut dst = old.clone();
            matmul(dst.view_mut(), Write::Add, a, b);
            assert_eq!(dst, Array2::from_shape_fn((m, n), |(i, j)| old[[i, j]] + expected(i, j)));
            matmul(dst.view_mut().reversed_axes(), Write::Replace, b.t(), a.t());
            assert_eq!(dst, Array2::from_shape_fn((m, n), |(i, j)| expected(i, j)));
        }
    }

    #[test]
    #[should_panic(expected = "differ in depth")]
    fn depths_must_agree() {
        matmul(Array2::<f32>::zeros((2, 2)).view_mut(), Write::Replace, Array2::zeros((2, 3)).view(), Array2::zeros((2, 2)).view());
    }
}
