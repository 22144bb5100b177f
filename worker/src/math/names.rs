//! Names of profiles, estimators, ratios, surrogates and aggregations, in the spellings of this project and of the frameworks.

use anyhow::{Result, bail};
use ppo_crds::spec::{
    Aggregation, CorrectionLevel, Deviation, Estimator, KlEstimator, Outside, Profile, Ratio, Surrogate,
};
use tch::Kind;

pub(super) fn profile(path: &str, name: &str) -> Result<Profile> {
    Ok(match plain(name).as_str() {
        "default" => Profile::Default,
        "openrlhf" => Profile::Openrlhf,
        "verl" => Profile::Verl,
        "trl" => Profile::Trl,
        "alpacafarm" => Profile::Alpacafarm,
        _ => bail!("{path}: unknown profile {name:?}; expected default, openrlhf, verl, trl or alpacafarm"),
    })
}

pub(super) fn dtype(path: &str, name: &str) -> Result<Kind> {
    Ok(match plain(name).as_str() {
        "float64" | "f64" | "double" => Kind::Double,
        "float32" | "f32" | "float" => Kind::Float,
        _ => bail!("{path}: unknown dtype {name:?}; expected float64 or float32"),
    })
}

pub(super) fn estimator(path: &str, name: &str) -> Result<Estimator> {
    Ok(match plain(name).as_str() {
        "gae" => Estimator::Gae,
        "rloo" => Estimator::Rloo,
        "grpo" | "groupnorm" => Estimator::Grpo,
        "drgrpo" => Estimator::DrGrpo,
        "reinforceplusplus" | "reinforce" => Estimator::ReinforcePlusPlus,
        "reinforceplusplusbaseline" | "reinforcebaseline" => Estimator::ReinforcePlusPlusBaseline,
        _ => bail!(
            "{path}: unknown estimator {name:?}; expected gae, rloo, grpo, drGrpo, reinforcePlusPlus or \
             reinforcePlusPlusBaseline"
        ),
    })
}

pub(super) fn kl_estimator(path: &str, name: &str) -> Result<KlEstimator> {
    let plain = plain(name);
    Ok(match plain.as_str() {
        "k1" | "kl" => KlEstimator::K1,
        "k2" | "mse" | "k2+" | "mse+" => KlEstimator::K2,
        "k3" | "lowvarkl" => KlEstimator::K3,
        "abs" => KlEstimator::Abs,
        "onesided" => KlEstimator::OneSided,
        // kl_penalty in verl 0.9's core_algos.py.
        "k1+" | "kl+" | "k3+" | "lowvarkl+" | "abs+" => bail!(
            "{path}: {name:?} has the value of {} with k2's gradient, which no estimator has here; ask for either by itself",
            name.trim_end_matches('+')
        ),
        _ => bail!("{path}: unknown KL estimator {name:?}; expected k1, k2, k3, abs or oneSided"),
    })
}

pub(super) fn aggregation(path: &str, name: &str) -> Result<Aggregation> {
    Ok(match plain(name).replace("sequence", "seq").as_str() {
        "tokenmean" => Aggregation::TokenMean,
        "seqmeantokenmean" => Aggregation::SequenceMeanTokenMean,
        "seqmeantokensum" => Aggregation::SequenceMeanTokenSum,
        "seqmeantokensumnorm" => Aggregation::SequenceMeanTokenSumNorm,
        "tokensum" => Aggregation::TokenSum,
        "paddedmean" => Aggregation::PaddedMean,
        _ => bail!(
            "{path}: unknown aggregation {name:?}; expected tokenMean, sequenceMeanTokenMean, sequenceMeanTokenSum, \
             sequenceMeanTokenSumNorm, tokenSum or paddedMean"
        ),
    })
}

pub(super) fn ratio(path: &str, name: &str) -> Result<Ratio> {
    Ok(match plain(name).as_str() {
        "token" | "ppo" | "vanilla" => Ratio::Token,
        "sequence" | "gspo" => Ratio::Sequence,
        _ => bail!("{path}: unknown ratio {name:?}; expected token or sequence"),
    })
}

pub(super) fn surrogate(path: &str, name: &str) -> Result<Surrogate> {
    Ok(match plain(name).as_str() {
        "clipped" | "ppo" | "vanilla" => Surrogate::Clipped,
        "cispo" => Surrogate::Cispo,
        _ => bail!("{path}: unknown surrogate {name:?}; expected clipped or cispo"),
    })
}

pub(super) fn deviation(path: &str, name: &str) -> Result<Deviation> {
    Ok(match plain(name).as_str() {
        "group" => Deviation::Group,
        "batch" => Deviation::Batch,
        _ => bail!("{path}: unknown deviation {name:?}; expected group or batch"),
    })
}

pub(super) fn correction_level(path: &str, name: &str) -> Result<CorrectionLevel> {
    Ok(match plain(name).as_str() {
        "token" => CorrectionLevel::Token,
        "sequence" => CorrectionLevel::Sequence,
        "geometric" => CorrectionLevel::Geometric,
        _ => bail!("{path}: unknown level {name:?}; expected token, sequence or geometric"),
    })
}

pub(super) fn outside(path: &str, name: &str) -> Result<Outside> {
    Ok(match plain(name).as_str() {
        "truncate" | "clip" => Outside::Truncate,
        "mask" => Outside::Mask,
        _ => bail!("{path}: unknown treatment {name:?}; expected truncate or mask"),
    })
}

/// Lower case without what stands between words, `++` and `pp` written out: Dr. GRPO, dr_grpo and drGrpo are one name. Whatever else is
/// there stays: it may have a meaning, as the `+` of verl's `k3+`.
fn plain(name: &str) -> String {
    let name = name.to_lowercase().replace("++", "plusplus");
    let name = name.replace(['-', '_', '.', ' '], "");
    name.replace("reinforcepp", "reinforceplusplus")
}
