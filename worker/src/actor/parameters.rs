//! A model's parameters in one flat buffer.
//!
//! The model's tensors and their gradients are views of two flat buffers, so that clipping, the optimizer and a checkpoint
//! are single operations, and no copy of the weights exists besides a float32 master where the model is bfloat16. Models that are
//! updated in turns share the buffer of gradients.

use anyhow::{Context, ensure};
use tch::{Kind, Tensor};

use crate::model::Weights;
use crate::native::optimizer::set_grad;

/// Flat parameters of one trained model.
#[derive(Debug)]
pub struct Parameters {
    slots: Vec<Slot>,
    /// Elements at the front that weight decay applies to: matrices; norms and biases follow.
    decayed: i64,
    /// [n] in the model's dtype; the model computes with views of it.
    model: Tensor,
    /// [n] float32; the gradients of those views, so that the sum of an update's micro-batches does not depend on how many there are.
    grads: Tensor,
    /// [n] float32: the weights of a bfloat16 model as the optimizer sees them.
    master: Option<Tensor>,
}

#[derive(Debug)]
struct Slot {
    name: String,
    view: Tensor,
}

impl Parameters {
    /// Moves `weights` into a flat buffer; on return they are trainable views of it.
    ///
    /// # Errors
    /// When a tensor cannot be copied or made a leaf.
    pub fn adopt(weights: &mut Weights) -> anyhow::Result<Self> {
        let _guard = tch::no_grad_guard();
        let mut order: Vec<(&String, &mut Tensor)> = weights.0.iter_mut().collect();
        ensure!(!order.is_empty(), "a model without parameters cannot be trained");
        order.sort_by_key(|(name, tensor)| (tensor.dim() < 2, (*name).clone()));
        let total: i64 = order.iter().map(|(_, tensor)| tensor.numel() as i64).sum();
        let decayed = order
            .iter()
            .filter(|(_, tensor)| tensor.dim() >= 2)
            .map(|(_, tensor)| tensor.numel() as i64)
            .sum();
        let options = (order[0].1.kind(), order[0].1.device());
        let model = Tensor::f_empty([total], options).with_context(|| format!("no memory for {total} parameters"))?;
        let grads = Tensor::f_zeros([total], (Kind::Float, options.1));
        let grads = grads.with_context(|| format!("no memory for {total} gradients"))?;

        let mut slots = Vec::with_capacity(order.len());
        let mut offset = 0;
        for (name, tensor) in order {
            let length = tensor.numel() as i64;
            let shape = tensor.size();
            let mut view = model.f_narrow(0, offset, length)?.f_view(shape.as_slice())?;
            view.f_copy_(tensor).with_context(|| format!("cannot place {name}"))?;
            let view = view.f_set_requires_grad(true)?;
            *tensor = view.shallow_clone();
            slots.push(Slot {
                name: name.clone(),
                view,
            });
            offset += length;
        }
        let master = (options.0 != Kind::Float).then(|| model.to_kind(Kind::Float));
        let mut parameters = Self {
            slots,
            decayed,
            model,
            grads: Tensor::new(),
            master,
        };
        parameters.attach(grads)?;
        Ok(parameters)
    }

    /// Gathers the gradients of both in the longer of their buffers. Each update leaves it zeroed, so that the two may be updated
    /// in turns: all micro-batches of one, then its optimizer, then the other.
    ///
    /// # Errors
    /// When a gradient cannot be attached.
    pub fn share_gradients(&mut self, other: &mut Self) -> anyhow::Result<()> {
        let (longer, shorter) = if self.count() >= other.count() {
            (self, other)
        } else {
            (other, self)
        };
        shorter.attach(longer.grads.f_narrow(0, 0, shorter.count())?)
    }

    /// Makes the parts of `grads`, [n] float32, the gradients of the model's tensors.
    fn attach(&mut self, grads: Tensor) -> anyhow::Result<()> {
        let mut offset = 0;
        for Slot { name, view } in &self.slots {
            let length = view.numel() as i64;
            let part = grads.f_narrow(0, offset, length)?.f_view(view.size().as_slice())?;
            set_grad(view, &part).with_context(|| name.clone())?;
            offset += length;
        }
        self.grads = grads;
        Ok(())
    }

    /// Number of parameters.
    pub fn count(&self) -> i64 {
        self.model.numel() as i64
    }

    /// How many of the first parameters weight decay applies to.
    pub fn decayed(&self) -> i64 {
        self.decayed
    }

    /// Sets all gradients to zero.
    pub fn zero_grads(&mut self) {
        let _guard = tch::no_grad_guard();
        let _ = self.grads.zero_();
    }

    /// Gradients of the update so far, [n] float32.
    pub fn grads(&self) -> &Tensor {
        &self.grads
    }

    /// Weights the optimizer updates, [n] float32.
    pub fn master(&self) -> &Tensor {
        self.master.as_ref().unwrap_or(&self.model)
    }

    /// The float32 master weights of a bfloat16 model; None where the model's own are float32.
    pub fn separate_master(&self) -> Option<&Tensor> {
        self.master.as_ref()
    }

    /// Rounds the master weights into the model.
    pub fn publish_master(&mut self) {
        let _guard = tch::no_grad_guard();
        if let Some(master) = &self.master {
            self.model.copy_(master);
        }
    }

    /// Replaces master weights and model (a checkpoint that is loaded).
    ///
    /// # Errors
    /// When the length differs.
    pub fn set_master(&mut self, master: &Tensor) -> anyhow::Result<()> {
        let _guard = tch::no_grad_guard();
        ensure!(
            master.size() == [self.count()],
            "the checkpoint has {:?} parameters, the model {}",
            master.size(),
            self.count()
        );
        self.model.f_copy_(master)?;
        if let Some(own) = &mut self.master {
            own.f_copy_(master)?;
        }
        Ok(())
    }

    /// The model's tensors by name, sharing storage, not tracked.
    pub fn weights(&self) -> Weights {
        Weights(
            self.slots
                .iter()
                .map(|slot| (slot.name.clone(), slot.view.detach()))
                .collect(),
        )
    }
}
