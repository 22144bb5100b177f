//! AdamW whose state can be saved: first and second moment as flat float32 tensors beside the master weights. Of several ranks each
//! has the state of its own part and updates that.

use ppo_crds::spec::OptimizerSpec;
use tch::{Kind, Tensor};

use super::parameters::Parameters;
use crate::native::optimizer::{AdamWStep, AdamWTensors, adamw};

/// Optimizer state of one model.
#[derive(Debug)]
pub struct AdamW {
    /// First moment, [own] float32.
    pub m: Tensor,
    /// Second moment, [own] float32.
    pub v: Tensor,
    /// Updates done.
    pub updates: u64,
}

impl AdamW {
    /// Fresh state for `parameters`.
    pub fn new(parameters: &Parameters) -> Self {
        Self {
            m: parameters.grads().zeros_like(),
            v: parameters.grads().zeros_like(),
            updates: 0,
        }
    }

    /// Applies the accumulated gradients and zeroes them. Returns the gradient norm over all ranks before clipping.
    ///
    /// A norm that is not finite changes nothing: the caller decides what a diverged run does.
    ///
    /// # Errors
    /// When libtorch refuses the update, or a rank is lost.
    pub fn update(
        &mut self,
        parameters: &mut Parameters,
        spec: &OptimizerSpec,
        learning_rate: f64,
    ) -> anyhow::Result<f64> {
        let _guard = tch::no_grad_guard();
        let norm = parameters.grad_norm()?;
        if !norm.is_finite() {
            return Ok(norm);
        }
        // torch.nn.utils.clip_grad_norm_ scales by max / (norm + 1e-6), capped at 1.
        let clip = spec.max_grad_norm > 0.0 && norm + 1e-6 > spec.max_grad_norm;
        // Where the parameters are: the update reads them there.
        let scalar = |value: f64| Tensor::f_full([] as [i64; 0], value, (Kind::Float, self.m.device()));
        let grad_scale = scalar(match clip {
            true => (norm + 1e-6) / spec.max_grad_norm,
            false => 1.0,
        })?;
        self.updates += 1;
        let count = scalar(self.updates as f64)?;
        let (own, decayed, grads) = (parameters.own(), parameters.decayed(), parameters.grads());
        let (m, v) = (&self.m, &self.v);
        for (start, end, weight_decay) in [(0, decayed, spec.weight_decay), (decayed, parameters.count(), 0.0)] {
            let Some((start, length)) = own.overlap(start, end) else {
                continue;
            };
            let step = AdamWStep {
                learning_rate,
                beta1: spec.beta1,
                beta2: spec.beta2,
                weight_decay,
                epsilon: spec.epsilon,
            };
            parameters.change_master(start - own.start, length, |weights, from| {
                let part = |tensor: &Tensor| tensor.f_narrow(0, from, weights.size1()?);
                let mut grads = part(&grads)?;
                let tensors = AdamWTensors {
                    weights,
                    grads: &grads,
                    m: &part(m)?,
                    v: &part(v)?,
                    step: &count,
                    grad_scale: &grad_scale,
                };
                adamw(&tensors, step)?;
                // While they are in the processor's cache: a pass of their own over all gradients takes as long as half of the update.
                let _ = grads.f_zero_()?;
                Ok(())
            })?;
        }
        parameters.gather()?;
        Ok(norm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Weights;

    fn one_parameter(kind: Kind) -> (Weights, Parameters) {
        let mut weights = Weights::default();
        weights.0.insert(
            "w".into(),
            Tensor::from_slice(&[0.5f32, -1.0, 2.0, 0.25])
                .view([2, 2])
                .to_kind(kind),
        );
        weights
            .0
            .insert("norm".into(), Tensor::from_slice(&[1.0f32, 1.5]).to_kind(kind));
        let parameters = Parameters::adopt(&mut weights).unwrap();
        (weights, parameters)
    }

    /// AdamW as Loshchilov and Hutter write it, on plain numbers.
    fn reference(mut w: f64, grads: &[f64], spec: &OptimizerSpec, rate: f64, decay: f64) -> f64 {
        let (mut m, mut v) = (0.0, 0.0);
        for (index, g) in grads.iter().enumerate() {
            let t = index as i32 + 1;
            w -= rate * decay * w;
            m = spec.beta1 * m + (1.0 - spec.beta1) * g;
            v = spec.beta2 * v + (1.0 - spec.beta2) * g * g;
            let (m_hat, v_hat) = (m / (1.0 - spec.beta1.powi(t)), v / (1.0 - spec.beta2.powi(t)));
            w -= rate * m_hat / (v_hat.sqrt() + spec.epsilon);
        }
        w
    }

    #[test]
    fn updates_follow_the_paper_and_weight_decay_spares_norms() {
        let (weights, mut parameters) = one_parameter(Kind::Float);
        let spec = OptimizerSpec {
            weight_decay: 0.1,
            max_grad_norm: 0.0,
            ..OptimizerSpec::default()
        };
        let mut optimizer = AdamW::new(&parameters);
        for scale in [1.0, -0.5, 2.0] {
            let loss = weights.0["w"].sum(Kind::Float) * scale + weights.0["norm"].sum(Kind::Float) * (3.0 * scale);
            loss.backward();
            optimizer.update(&mut parameters, &spec, 0.01).unwrap();
        }
        let got = weights.0["w"].double_value(&[0, 0]);
        let want = reference(0.5, &[1.0, -0.5, 2.0], &spec, 0.01, 0.1);
        assert!((got - want).abs() < 1e-6, "{got} {want}");
        let got = weights.0["norm"].double_value(&[1]);
        let want = reference(1.5, &[3.0, -1.5, 6.0], &spec, 0.01, 0.0);
        assert!((got - want).abs() < 1e-6, "{got} {want}");
    }

    #[test]
    fn the_global_norm_is_reported_before_clipping_and_clipping_keeps_the_direction() {
        let (weights, mut parameters) = one_parameter(Kind::Float);
        let spec = OptimizerSpec {
            max_grad_norm: 1.0,
            ..OptimizerSpec::default()
        };
        let mut optimizer = AdamW::new(&parameters);
        (weights.0["w"].sum(Kind::Float) * 30.0).backward();
        let norm = optimizer.update(&mut parameters, &spec, 0.0).unwrap();
        assert!((norm - 60.0).abs() < 1e-4);
        // m = (1 - beta1) * clipped gradient; four equal gradients of norm 1 are 0.5 each.
        assert!((optimizer.m.double_value(&[0]) - 0.1 * 0.5).abs() < 1e-6);
    }

    #[test]
    fn small_updates_of_a_bfloat16_model_are_kept_in_the_master_weights() {
        let (weights, mut parameters) = one_parameter(Kind::BFloat16);
        let mut optimizer = AdamW::new(&parameters);
        for _ in 0..50 {
            weights.0["w"].sum(Kind::Float).backward();
            optimizer
                .update(&mut parameters, &OptimizerSpec::default(), 1e-4)
                .unwrap();
        }
        // Each step is below half a unit in the last place of 2.0 in bfloat16 (1/128); fifty of them are not.
        assert!(weights.0["w"].double_value(&[1, 0]) < 2.0);
        assert!((parameters.master().double_value(&[2]) - (2.0 - 50.0 * 1e-4)).abs() < 1e-3);
    }

    #[test]
    fn the_gradients_of_a_bfloat16_model_gather_in_float32() {
        let (weights, parameters) = one_parameter(Kind::BFloat16);
        for _ in 0..300 {
            weights.0["w"].sum(Kind::Float).backward();
        }
        // In bfloat16 the sum would stay at 256, whose neighbour is 258.
        assert_eq!(parameters.grads().double_value(&[0]), 300.0);
    }

    #[test]
    fn models_that_share_their_gradients_are_updated_as_if_each_had_its_own() {
        let run = |shared: bool| {
            let (policy, mut policys) = one_parameter(Kind::Float);
            let (critic, mut critics) = one_parameter(Kind::BFloat16);
            if shared {
                policys.share_gradients(&mut critics).unwrap();
                assert_eq!(policys.grads().data_ptr(), critics.grads().data_ptr());
            }
            let mut optimizers = [AdamW::new(&policys), AdamW::new(&critics)];
            let spec = OptimizerSpec::default();
            for scale in [1.0, -3.0] {
                (policy.0["w"].sum(Kind::Float) * scale).backward();
                optimizers[0].update(&mut policys, &spec, 0.1).unwrap();
                (critic.0["norm"].sum(Kind::Float) * (2.0 * scale)).backward();
                optimizers[1].update(&mut critics, &spec, 0.1).unwrap();
            }
            [policys.master(), critics.master()]
        };
        assert_eq!(run(true), run(false));
    }

    #[test]
    fn a_gradient_that_is_not_finite_changes_nothing() {
        let (weights, mut parameters) = one_parameter(Kind::Float);
        let before = parameters.master();
        let mut optimizer = AdamW::new(&parameters);
        (weights.0["w"].sum(Kind::Float) * f64::NAN).backward();
        let norm = optimizer
            .update(&mut parameters, &OptimizerSpec::default(), 1.0)
            .unwrap();
        assert!(norm.is_nan());
        assert_eq!(parameters.master(), before);
        assert_eq!(optimizer.updates, 0);
    }
}
