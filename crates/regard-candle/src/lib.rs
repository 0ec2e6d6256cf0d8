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
//! Query head `h` reads key/value head `h / (heads_q / heads_kv)`. A bias among the options is a constant here: it gets no gradient.
#![forbid(unsafe_code)]

use candle_core::{CpuStorage, CustomOp3, DType, Error, Layout, Result, Shape, Storage, Tensor, WithDType};
use half::{bf16, f16};
use ndarray::{ArrayView4, ShapeBuilder};
use regard::{Attention, Element, Saved};
use std::sync::{Mutex, PoisonError};

/// Attend, as `options` says. Differentiable in q, k and v.
///
/// # Errors
/// When shapes, types or options do not fit, or a tensor is not on the CPU.
pub fn attention(q: &Tensor, k: &Tensor, v: &Tensor, options: &Attention<'static>) -> Result<Tensor> {
    for (name, x) in [("q", q), ("k", k), ("v", v)] {
        if !x.device().is_cpu() {
            return Err(Error::Msg(format!(
                "{name} is on {:?}; regard computes on the CPU: move it with to_device",
                x.device().location()
            )));
        }
        if x.rank() != 4 {
            return Err(Error::Msg(format!("{name} has shape {:?}, expected [batch, head, seq, dim]", x.dims())));
        }
        if x.dtype() != q.dtype() {
            return Err(Error::Msg(format!("{name} is {:?} and q is {:?}; they must be of one type", x.dtype(), q.dtype())));
        }
    }
    q.apply_op3(k, v, Attend { options: options.clone(), kept: Mutex::new(None) })
}

/// What the forward pass keeps for the backward pass.
enum Kept {
    F32(Saved<f32>),
    F64(Saved<f64>),
    F16(Saved<f16>),
    Bf16(Saved<bf16>),
}

/// The element types, as candle and as regard know them.
trait Number: Element + WithDType {
    fn keep(saved: Saved<Self>) -> Kept;
    fn kept(kept: &Kept) -> Option<&Saved<Self>>;
}

macro_rules! number {
    ($t:ty, $variant:ident) => {
        impl Number for $t {
            fn keep(saved: Saved<Self>) -> Kept {
                Kept::$variant(saved)
            }
            fn kept(kept: &Kept) -> Option<&Saved<Self>> {
                if let Kept::$variant(saved) = kept { Some(saved) } else { None }
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
    /// Of the forward pass, which is run once, before any backward pass.
    kept: Mutex<Option<Kept>>,
}

impl Attend {
    fn forward<E: Number>(&self, x: [(&CpuStorage, &Layout); 3]) -> Result<(CpuStorage, Shape)> {
        let [q, k, v] = x;
        let (q, k, v) = (view::<E>(q)?, view::<E>(k)?, view::<E>(v)?);
        let saved = self.options.forward_saved(q, k, v).map_err(Error::wrap)?;
        let shape = Shape::from(saved.out.dim());
        let out = saved.out.iter().copied().collect();
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(E::keep(saved));
        Ok((E::to_cpu_storage_owned(out), shape))
    }

    fn backward<E: Number>(&self, x: [&Tensor; 4]) -> Result<[Tensor; 3]> {
        let held = x.map(Tensor::storage_and_layout);
        let mut views = Vec::with_capacity(held.len());
        for (storage, layout) in &held {
            let Storage::Cpu(storage) = &**storage else {
                return Err(Error::Msg("a gradient of attention is not on the CPU".to_owned()));
            };
            views.push(view::<E>((storage, layout))?);
        }
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let saved = kept.as_ref().and_then(E::kept).ok_or_else(|| Error::Msg("backward before forward".to_owned()))?;
        let gradients = self.options.backward(views[0], views[1], views[2], saved, views[3]).map_err(Error::wrap)?;
        let tensor = |x: ndarray::Array4<E>| {
            let shape = x.dim();
            Tensor::from_vec(x.into_raw_vec_and_offset().0, shape, &candle_core::Device::Cpu)
        };
        Ok([tensor(gradients.dq)?, tensor(gradients.dk)?, tensor(gradients.dv)?])
    }
}

/// The numbers of a tensor, where they lie.
fn view<'a, E: Number>((storage, layout): (&'a CpuStorage, &Layout)) -> Result<ArrayView4<'a, E>> {
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
