//! The operation against the same thing composed of candle's own.

use candle_core::{D, DType, Device, Result, Tensor, Var};
use half::bf16;
use regard::{Attention, Bias, Mask};

const CPU: &Device = &Device::Cpu;

fn variable(shape: (usize, usize, usize, usize), dtype: DType, seed: u64) -> Result<Var> {
    let mut state = seed;
    let n = shape.0 * shape.1 * shape.2 * shape.3;
    let numbers: Vec<f64> = (0..n)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as f64 / (1u64 << 30) as f64 - 1.0
        })
        .collect();
    Var::from_tensor(&Tensor::from_vec(numbers, shape, CPU)?.to_dtype(dtype)?)
}

/// softmax(q k^T / sqrt(d) + mask) v, every step a candle operation.
fn composed(q: &Tensor, k: &Tensor, v: &Tensor, visible: &Tensor) -> Result<Tensor> {
    let group = q.dim(1)? / k.dim(1)?;
    let spread = |x: &Tensor| -> Result<Tensor> {
        let (b, h, n, d) = x.dims4()?;
        x.unsqueeze(2)?.broadcast_as((b, h, group, n, d))?.reshape((b, h * group, n, d))
    };
    let (k, v) = (spread(k)?.contiguous()?, spread(v)?.contiguous()?);
    let scores = (q.contiguous()?.matmul(&k.t()?)? / (q.dim(3)? as f64).sqrt())?;
    let hidden = ((1.0 - visible.to_dtype(scores.dtype())?)? * -3e4)?;
    let scores = scores.broadcast_add(&hidden)?;
    let p = scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?.detach())?.exp()?;
    p.broadcast_div(&p.sum_keepdim(D::Minus1)?)?.matmul(&v)
}

fn visible(n: usize, m: usize, f: impl Fn(usize, usize) -> bool) -> Result<Tensor> {
    let bits: Vec<u8> = (0..n * m).map(|at| u8::from(f(at / m, at % m))).collect();
    Tensor::from_vec(bits, (1, 1, n, m), CPU)
}

fn largest_difference(a: &Tensor, b: &Tensor) -> Result<f64> {
    let differences = (a.to_dtype(DType::F64)? - b.to_dtype(DType::F64)?)?.abs()?.flatten_all()?.to_vec1::<f64>()?;
    // NaN is the largest of all.
    Ok(differences.into_iter().fold(0.0, |max, x| if max.is_nan() || x <= max { max } else { x }))
}

#[track_caller]
fn compare(options: &Attention<'static>, seen: &Tensor, dtype: DType, tolerance: f64) -> Result<()> {
    let (n, m) = (seen.dim(2)?, seen.dim(3)?);
    let (q, k, v) = (variable((2, 4, n, 16), dtype, 1)?, variable((2, 2, m, 16), dtype, 2)?, variable((2, 2, m, 16), dtype, 3)?);
    let weights = variable((2, 4, n, 16), dtype, 4)?;
    let ours = regard_candle::attention(&q, &k, &v, options)?;
    let theirs = composed(&q, &k, &v, seen)?;
    assert!(largest_difference(&ours, &theirs)? < tolerance);
    let ours = (ours * weights.as_tensor())?.sum_all()?.backward()?;
    let theirs = (theirs * weights.as_tensor())?.sum_all()?.backward()?;
    for (name, x) in [("dq", &q), ("dk", &k), ("dv", &v)] {
        let (ours, theirs) = (ours.get(x).expect(name), theirs.get(x).expect(name));
        let difference = largest_difference(ours, theirs)?;
        assert!(difference < tolerance, "{name}: {difference:e}");
        assert!(ours.to_dtype(DType::F64)?.abs()?.max_all()?.to_scalar::<f64>()? > 1e-3, "{name} is not all zero");
    }
    Ok(())
}

#[test]
fn result_and_gradients_agree_with_candles_own() -> Result<()> {
    let causal = Attention::new().causal();
    let window = Attention::new().mask(Mask::window(Some(5), Some(2)));
    for (dtype, tolerance) in [(DType::F64, 1e-12), (DType::F32, 1e-5), (DType::F16, 2e-2), (DType::BF16, 1.5e-1)] {
        compare(&Attention::new(), &visible(20, 33, |_, _| true)?, dtype, tolerance)?;
        compare(&causal, &visible(20, 20, |i, j| j <= i)?, dtype, tolerance)?;
        compare(&window, &visible(40, 40, |i, j| j + 5 >= i && j <= i + 2)?, dtype, tolerance)?;
    }
    Ok(())
}

#[test]
fn bias_that_is_a_tensor_gets_its_gradient() -> Result<()> {
    // One per pair and head, one that serves all heads and batch entries, and one per key.
    for shape in [(2, 4, 20, 33), (1, 1, 20, 33), (2, 1, 1, 33)] {
        for (dtype, tolerance) in [(DType::F64, 1e-12), (DType::F32, 2e-5), (DType::BF16, 2e-1)] {
            let (q, k, v) = (variable((2, 4, 20, 16), dtype, 1)?, variable((2, 2, 33, 16), dtype, 2)?, variable((2, 2, 33, 16), dtype, 3)?);
            let (bias, weights) = (variable(shape, dtype, 5)?, variable((2, 4, 20, 16), dtype, 4)?);
            let ours = regard_candle::attention_with_bias(&q, &k, &v, &bias, &Attention::new())?;
            let group = |x: &Tensor| -> Result<Tensor> {
                let (b, h, n, d) = x.dims4()?;
                x.unsqueeze(2)?.broadcast_as((b, h, 2, n, d))?.reshape((b, 4, n, d))?.contiguous()
            };
            let scores = (q.matmul(&group(&k)?.t()?)? * 0.25)?.broadcast_add(bias.as_tensor())?;
            let p = scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?.detach())?.exp()?;
            let theirs = p.broadcast_div(&p.sum_keepdim(D::Minus1)?)?.matmul(&group(&v)?)?;
            assert!(largest_difference(&ours, &theirs)? < tolerance);
            let ours = (ours * weights.as_tensor())?.sum_all()?.backward()?;
            let theirs = (theirs * weights.as_tensor())?.sum_all()?.backward()?;
            for (name, x) in [("dq", &q), ("dk", &k), ("dv", &v), ("d_bias", &bias)] {
                let (ours, theirs) = (ours.get(x).expect(name), theirs.get(x).expect(name));
                assert_eq!(ours.dims(), x.dims());
                // A bias of one key sums over forty rows of every head.
                let size = theirs.to_dtype(DType::F64)?.abs()?.max_all()?.to_scalar::<f64>()?;
                let difference = largest_difference(ours, theirs)?;
                assert!(difference < tolerance * size.max(1.0) && size > 1e-3, "{shape:?} {dtype:?} {name}: {difference:e} of {size:e}");
            }
        }
    }
    Ok(())
}

#[test]
fn nothing_is_kept_where_no_gradient_will_come() -> Result<()> {
    let x = variable((1, 2, 9, 8), DType::F32, 1)?.detach();
    let out = regard_candle::attention(&x, &x, &x, &Attention::new().causal())?;
    assert!(!out.track_op(), "the operation, and what it would keep, is not part of the result");
    let tracked = Var::from_tensor(&x)?;
    let kept = regard_candle::attention(&tracked, &x, &x, &Attention::new().causal())?;
    assert!(kept.track_op());
    assert_eq!(largest_difference(&out, &kept)?, 0.0);
    Ok(())
}

#[test]
fn strided_tensors_need_no_copy_to_be_right() -> Result<()> {
    // [batch, seq, head, dim], as a projection leaves it, and a slice of it.
    let x = variable((2, 30, 4, 16), DType::F64, 5)?;
    let heads = x.transpose(1, 2)?;
    let part = heads.narrow(2, 3, 20)?;
    let strided = regard_candle::attention(&part, &heads, &heads, &Attention::new())?;
    let (part, heads) = (part.contiguous()?, heads.contiguous()?);
    let plain = regard_candle::attention(&part, &heads, &heads, &Attention::new())?;
    assert_eq!(largest_difference(&strided, &plain)?, 0.0);
    let gradients = strided.sqr()?.sum_all()?.backward()?;
    assert_eq!(gradients.get(&x).expect("x has a gradient").dims(), x.dims());
    // One key/value head, broadcast with a stride of 0.
    let one = variable((2, 1, 30, 16), DType::F64, 6)?;
    let wide = one.broadcast_as((2, 4, 30, 16))?;
    let shared = regard_candle::attention(&heads, &wide, &wide, &Attention::new())?;
    let grouped = regard_candle::attention(&heads, &one, &one, &Attention::new())?;
    assert_eq!(largest_difference(&shared, &grouped)?, 0.0);
    Ok(())
}

#[test]
fn every_variable_gets_a_gradient_through_a_layer() -> Result<()> {
    // An operation that severs the graph would leave the projections without.
    let x = Tensor::randn(0f32, 1.0, (2, 12, 32), CPU)?;
    let projections = ["q", "k", "v", "out"].map(|_| Var::randn(0f32, 0.2, (32, 32), CPU).expect("fits"));
    let heads = |w: &Var| -> Result<Tensor> { x.broadcast_matmul(w)?.reshape((2, 12, 4, 8))?.transpose(1, 2) };
    let out =
        regard_candle::attention(&heads(&projections[0])?, &heads(&projections[1])?, &heads(&projections[2])?, &Attention::new().causal())?;
    let out = out.transpose(1, 2)?.reshape((2, 12, 32))?.broadcast_matmul(&projections[3])?;
    let gradients = out.sqr()?.mean_all()?.backward()?;
    for (name, w) in ["q", "k", "v", "out"].iter().zip(&projections) {
        let g = gradients.get(w).unwrap_or_else(|| panic!("{name} has no gradient"));
        assert!(g.abs()?.max_all()?.to_scalar::<f32>()? > 0.0, "{name}");
    }
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused_in_words() -> Result<()> {
    let x = |shape: (usize, usize, usize, usize)| Tensor::zeros(shape, DType::F32, CPU);
    let error =
        |q: &Tensor, k: &Tensor, v: &Tensor| regard_candle::attention(q, k, v, &Attention::new()).expect_err("does not fit").to_string();
    let q = x((1, 2, 3, 4))?;
    assert!(error(&q, &x((1, 2, 5, 4))?, &x((1, 2, 6, 4))?).contains("differ in length"));
    assert!(error(&q.flatten(0, 1)?, &q, &q).contains("[batch, head, seq, dim]"));
    assert!(error(&q, &q.to_dtype(DType::F64)?, &q).contains("one type"));
    let whole = q.to_dtype(DType::U8)?;
    assert!(error(&whole, &whole, &whole).contains("f32, f64, f16 and bf16"));
    let half = q.to_dtype(DType::BF16)?;
    let out = regard_candle::attention(&half, &half, &half, &Attention::new())?;
    assert_eq!(out.flatten_all()?.to_vec1::<bf16>()?.len(), 24);
    Ok(())
}

/// Biases among the options are constants: the tensor gets its own gradient, not theirs, whatever is said of theirs.
#[test]
fn bias_that_is_a_tensor_gets_its_own_gradient_beside_others() -> Result<()> {
    let constant = ndarray::Array4::from_shape_fn((1, 1, 20, 33), |(_, _, i, j)| ((3 * i + j) as f32).sin());
    let slopes = regard::alibi_slopes(4);
    let (q, k, v) =
        (variable((2, 4, 20, 16), DType::F64, 1)?, variable((2, 4, 33, 16), DType::F64, 2)?, variable((2, 4, 33, 16), DType::F64, 3)?);
    let (bias, weights) = (variable((1, 4, 20, 33), DType::F64, 5)?, variable((2, 4, 20, 16), DType::F64, 4)?);
    let added: Vec<f64> = (0..4 * 20 * 33)
        .map(|at| (at / (20 * 33), at / 33 % 20, at % 33))
        .map(|(h, i, j)| f64::from(constant[[0, 0, i, j]]) - slopes[h] * i.abs_diff(j) as f64)
        .collect();
    let added = Tensor::from_vec(added, (1, 4, 20, 33), CPU)?;
    let scores = ((q.matmul(&k.t()?)? * 0.25)?.broadcast_add(bias.as_tensor())?).broadcast_add(&added)?;
    let p = scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?.detach())?.exp()?;
    let theirs = p.broadcast_div(&p.sum_keepdim(D::Minus1)?)?.matmul(&v)?;
    let their_gradients = (&theirs * weights.as_tensor())?.sum_all()?.backward()?;
    let plain = Attention::new().bias(Bias::Dense(constant.into())).bias(Bias::Alibi(slopes));
    for options in [plain.clone(), plain.clone().bias_gradient(false), plain.bias_gradient(true)] {
        let ours = regard_candle::attention_with_bias(&q, &k, &v, &bias, &options)?;
        assert!(largest_difference(&ours, &theirs)? < 1e-7, "the constant is in f32");
        let gradients = (ours * weights.as_tensor())?.sum_all()?.backward()?;
        for (name, x) in [("dq", &q), ("dk", &k), ("dv", &v), ("d_bias", &bias)] {
            let (ours, theirs) = (gradients.get(x).expect(name), their_gradients.get(x).expect(name));
            assert_eq!(ours.dims(), x.dims());
            assert!(largest_difference(ours, theirs)? < 1e-6, "{name}");
            assert!(theirs.abs()?.max_all()?.to_scalar::<f64>()? > 1e-3, "{name} is not all zero");
        }
    }
    Ok(())
}
