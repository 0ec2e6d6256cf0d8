//! Regard's attention as a differentiable operation of candle: any mask, linear memory, and gradients on q, k and v.
//!
//! ```
//! use candle_core::{Device, Result, Tensor, Var};
//! use regard::Attention;
//!
//! # fn main() -> Result<()> {
//! let q = Var::randn(0f32, 1.0, (1, 8, 64, 32), &Device::Cpu)?;
//! let k = Var::randn(0f32, 1.0, (1, 2, 64, 32), &Device::Cpu)?;
//! let v = Var::randn(0f32, 1.0, (1, 2, 64, 32), &Device::Cpu)?;
//!
//! let out = regard_candle::attention(&q, &k, &v, &Attention::new().causal().window(16, 0))?;
//! let gradients = out.sqr()?.sum_all()?.backward()?;
//! assert_eq!(gradients.get(&k).expect("k has a gradient").dims(), [1, 2, 64, 32]);
//! # Ok(())
//! # }
//! ```
//!
//! Tensors are `[batch, head, seq, dim]` on the CPU, of f32, f64, f16 or bf16, with any strides: nothing is copied on the way in.
//! Query head `h` reads key/value head `h / (heads_q / heads_kv)`. A bias among the options is a constant and gets no gradient: one that
//! learns is given to [`attention_with_bias`] as a tensor.
#![warn(missing_docs)]
#![forbid(unsafe_code)]

use candle_core::{CpuStorage, CustomOp3, DType, Device, Error, Layout, Result, Shape, Storage, Tensor, WithDType};
use half::{bf16, f16};
use ndarray::{ArrayView4, Axis, ShapeBuilder};
use regard::{Attention, Bias, BiasGradient, Element, Gradients, Saved};
use std::sync::{Mutex, PoisonError};

/// Attention with `options`. Differentiable in q, k and v.
///
/// # Errors
/// When shapes, types or options do not fit, or a tensor is not on the CPU.
pub fn attention(q: &Tensor, k: &Tensor, v: &Tensor, options: &Attention<'static>) -> Result<Tensor> {
    check([("q", q), ("k", k), ("v", v)])?;
    apply(q, k, v, options, None)
}

/// The same with a bias, `[batch or 1, heads_q or 1, seq_q or 1, seq_kv or 1]`, that is added to the scores, beside those among the
/// options, which stay constant. Differentiable in q, k, v and the bias, independent of [`Attention::bias_gradient`]; k and v are copied
/// once, side by side, since candle's operations take three tensors.
///
/// # Errors
/// As [`attention`], and when the bias does not fit the scores.
pub fn attention_with_bias(q: &Tensor, k: &Tensor, v: &Tensor, bias: &Tensor, options: &Attention<'static>) -> Result<Tensor> {
    check([("q", q), ("k", k), ("v", v)])?;
    if !bias.device().is_cpu() {
        return Err(elsewhere("the bias", bias));
    }
    if bias.rank() != 4 {
        return Err(Error::Msg(format!("the bias has shape {:?}, expected [batch or 1, head or 1, query or 1, key or 1]", bias.dims())));
    }
    let joined = Tensor::cat(&[k, v], 3)?;
    // Added in the precision of the scores: half-precision tensors are computed in f32.
    let bias = bias.to_dtype(if q.dtype() == DType::F64 { DType::F64 } else { DType::F32 })?;
    apply(q, &joined, &bias, options, Some(k.dim(3)?))
}

fn elsewhere(name: &str, x: &Tensor) -> Error {
    Error::Msg(format!("{name} is on {:?}; regard computes on the CPU: move it with to_device", x.device().location()))
}

fn check(operands: [(&str, &Tensor); 3]) -> Result<()> {
    let dtype = operands[0].1.dtype();
    for (name, x) in operands {
        if !x.device().is_cpu() {
            return Err(elsewhere(name, x));
        }
        if x.rank() != 4 {
            return Err(Error::Msg(format!("{name} has shape {:?}, expected [batch, head, seq, dim]", x.dims())));
        }
        if x.dtype() != dtype {
            return Err(Error::Msg(format!("{name} is {:?} and q is {dtype:?}; they must be of one type", x.dtype())));
        }
    }
    Ok(())
}

fn apply(q: &Tensor, second: &Tensor, third: &Tensor, options: &Attention<'static>, key_dim: Option<usize>) -> Result<Tensor> {
    let tracked = [q, second, third].iter().any(|x| x.track_op());
    let op = Attend { options: options.clone(), key_dim, tracked, kept: Mutex::new(None) };
    if tracked { q.apply_op3(second, third, op) } else { q.apply_op3_no_bwd(second, third, &op) }
}

/// State that the forward pass keeps for the backward pass.
enum AnySaved {
    F32(Saved<f32>),
    F64(Saved<f64>),
    F16(Saved<f16>),
    Bf16(Saved<bf16>),
}

/// The element types, as candle and as regard know them.
trait Number: Element + WithDType {
    fn keep(saved: Saved<Self>) -> AnySaved;
    fn kept(kept: &AnySaved) -> Option<&Saved<Self>>;
}

macro_rules! number {
    ($t:ty, $variant:ident) => {
        impl Number for $t {
            fn keep(saved: Saved<Self>) -> AnySaved {
                AnySaved::$variant(saved)
            }
            fn kept(kept: &AnySaved) -> Option<&Saved<Self>> {
                if let AnySaved::$variant(saved) = kept { Some(saved) } else { None }
            }
        }
    };
}

number!(f32, F32);
number!(f64, F64);
number!(f16, F16);
number!(bf16, Bf16);

struct Attend {
    options: Attention<'static>,
    /// `Some(d)`: the second operand is k (d columns) and v side by side, the third is a bias; `None`: they are k and v.
    key_dim: Option<usize>,
    /// Whether a backward pass may follow.
    tracked: bool,
    /// Of the forward pass, which is run once, before any backward pass.
    kept: Mutex<Option<AnySaved>>,
}

/// A tensor's storage and layout.
type Stored<'a> = (&'a CpuStorage, &'a Layout);

/// The operands as attention takes them.
struct Operands<'a, E> {
    q: ArrayView4<'a, E>,
    k: ArrayView4<'a, E>,
    v: ArrayView4<'a, E>,
    options: Attention<'a>,
}

impl Attend {
    fn operands<'a, E: Number>(&'a self, [q, second, third]: [Stored<'a>; 3]) -> Result<Operands<'a, E>> {
        let (q, options) = (view::<E>(q)?, self.options.clone());
        let Some(key_dim) = self.key_dim else {
            // The biases among the options are constants.
            return Ok(Operands { q, k: view(second)?, v: view(third)?, options: options.bias_gradient(false) });
        };
        let (k, v) = view::<E>(second)?.split_at(Axis(3), key_dim);
        let bias = match third.0 {
            CpuStorage::F64(_) => Bias::Dense64(view::<f64>(third)?.into()),
            _ => Bias::Dense(view::<f32>(third)?.into()),
        };
        // The tensor is the last bias: its gradient is the last of the gradients.
        Ok(Operands { q, k, v, options: options.bias(bias).bias_gradient(true) })
    }

    fn forward<E: Number>(&self, x: [Stored<'_>; 3]) -> Result<(CpuStorage, Shape)> {
        let Operands { q, k, v, options } = self.operands::<E>(x)?;
        if !self.tracked {
            let out = options.forward(q, k, v).map_err(Error::wrap)?.out;
            let shape = Shape::from(out.dim());
            return Ok((E::to_cpu_storage_owned(out.iter().copied().collect()), shape));
        }
        let saved = options.forward_saved(q, k, v).map_err(Error::wrap)?;
        let shape = Shape::from(saved.out.dim());
        let out = saved.out.iter().copied().collect();
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(E::keep(saved));
        Ok((E::to_cpu_storage_owned(out), shape))
    }

    fn backward<E: Number>(&self, [q, second, third, d_out]: [&Tensor; 4]) -> Result<[Tensor; 3]> {
        let held = [q, second, third, d_out].map(Tensor::storage_and_layout);
        let mut stored = Vec::with_capacity(held.len());
        for (storage, layout) in &held {
            let Storage::Cpu(storage) = &**storage else {
                return Err(Error::Msg("a gradient of attention is not on the CPU".to_owned()));
            };
            stored.push((storage, *layout));
        }
        let Operands { q, k, v, options } = self.operands::<E>([stored[0], stored[1], stored[2]])?;
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let saved = kept.as_ref().and_then(E::kept).ok_or_else(|| Error::Msg("backward before forward".to_owned()))?;
        let gradients = options.backward(q, k, v, saved, view::<E>(stored[3])?).map_err(Error::wrap)?;
        let Gradients { dq, dk, dv, d_biases, .. } = gradients;
        if self.key_dim.is_none() {
            return Ok([tensor(dq)?, tensor(dk)?, tensor(dv)?]);
        }
        let d_bias = match d_biases.into_iter().next_back() {
            Some(BiasGradient::Dense(d)) => tensor(d)?,
            Some(BiasGradient::Dense64(d)) => tensor(d)?,
            _ => return Err(Error::Msg("attention gave no gradient on its bias".to_owned())),
        };
        Ok([tensor(dq)?, Tensor::cat(&[tensor(dk)?, tensor(dv)?], 3)?, d_bias])
    }
}

fn tensor<E: WithDType>(x: ndarray::Array4<E>) -> Result<Tensor> {
    let shape = x.dim();
    Tensor::from_vec(x.into_raw_vec_and_offset().0, shape, &Device::Cpu)
}

/// A view of a tensor's storage.
fn view<'a, E: WithDType>((storage, layout): (&'a CpuStorage, &Layout)) -> Result<ArrayView4<'a, E>> {
    let numbers = &storage.as_slice::<E>()?[layout.start_offset()..];
    let strides = layout.stride();
    let shape = layout.shape().dims4()?.strides((strides[0], strides[1], strides[2], strides[3]));
    ArrayView4::from_shape(shape, numbers).map_err(Error::wrap)
}

impl CustomOp3 for Attend {
    fn name(&self) -> &'static str {
        "regard-attention"
    }

    fn cpu_fwd(
        &self,
        s1: &CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
        s3: &CpuStorage,
        l3: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let x = [(s1, l1), (s2, l2), (s3, l3)];
        match s1 {
            CpuStorage::F32(_) => self.forward::<f32>(x),
            CpuStorage::F64(_) => self.forward::<f64>(x),
            CpuStorage::F16(_) => self.forward::<f16>(x),
            CpuStorage::BF16(_) => self.forward::<bf16>(x),
            _ => Err(Error::Msg("attention takes f32, f64, f16 and bf16 tensors".to_owned())),
        }
    }

    fn bwd(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        _: &Tensor,
        d_out: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let x = [q, k, v, d_out];
        let [dq, dk, dv] = match q.dtype() {
            DType::F32 => self.backward::<f32>(x)?,
            DType::F64 => self.backward::<f64>(x)?,
            DType::F16 => self.backward::<f16>(x)?,
            _ => self.backward::<bf16>(x)?,
        };
        Ok((Some(dq), Some(dk), Some(dv)))
    }
}
