#!/usr/bin/env python3
"""Expected values for `ppo-worker math`, from implementations that share no code with it.

    python worker/tests/math/reference.py            writes worker/tests/math/expected.json
    python worker/tests/math/reference.py --check    compares it with what is there

Needs torch and trl 0.24 (its masked_mean, masked_whiten and first_true_indices are called). The other frameworks'
formulas are written out below from OpenRLHF 0.11 (models/utils.py, models/loss.py, experience_maker.py), verl 0.9
(trainer/ppo/core_algos.py, utils/torch_functional.py), TRL 1.10 (trainer/grpo_trainer.py, for CISPO, which 0.24 does
not have) and AlpacaFarm 0.2 (rl/ppo_trainer.py, torch_ops.py), all in float64, in the order of the framework's own
operations, gradients by autograd.
"""

import argparse
import json
import pathlib

import torch
from trl.core import masked_mean as trl_mean
from trl.core import masked_whiten as trl_whiten
from trl.trainer.utils import first_true_indices

FIXTURE = pathlib.Path(__file__).parent / "expected.json"
torch.set_default_dtype(torch.float64)


# ---- data -------------------------------------------------------------------------------------------------------

def batch(seed, kind):
    """One step of 8 samples, 7 slots. kind: right (padding at the end), left, tools (masked tokens inside)."""
    g = torch.Generator().manual_seed(seed)
    rand = lambda *shape: torch.randn(*shape, generator=g)  # rounded at the end: the file stays small
    size, time = 8, 7
    lengths = torch.tensor([7, 3, 1, 5, 6, 2, 7, 4])
    slots = torch.arange(time)
    mask = slots[None, :] < lengths[:, None]
    if kind == "left":
        mask = mask.flip(1)
    if kind == "tools":
        mask[0, 2:4] = False
        mask[3, 1] = False
        mask[4, 3:5] = False
        mask[6, 6] = False  # the last token is a tool's
    old = -rand(size, time).abs() - 0.1
    data = {
        "mask": mask,
        "old": old,
        "ref": old + 0.4 * rand(size, time),
        "new": old + 0.3 * rand(size, time),
        "rollout": old + 0.2 * rand(size, time),
        "values": rand(size, time),
        "scores": 2.0 * rand(size),
        "groups": torch.tensor([5, 9, 5, 2, 9, 2, 5, 9]),
        "lengths": lengths,
    }
    data["new_values"] = data["values"] + 0.4 * rand(size, time)
    data["returns"] = data["values"] + rand(size, time)
    data = {k: v.round(decimals=3) if v.is_floating_point() else v for k, v in data.items()}
    data["scores"][0] = 14.0  # beyond OpenRLHF's clip
    data["scores"][2] = 13.0
    return data


def at_padding(data, value=0.0):
    """AlpacaFarm's log-probs are 0 at padding: its cross-entropy ignores pad ids."""
    return {k: torch.where(data["mask"], v, torch.tensor(value)) if k in ("old", "ref", "new") else v for k, v in data.items()}


# ---- KL ---------------------------------------------------------------------------------------------------------

def kl_estimate(profile, name, x, ref):
    d = x - ref
    if profile == "verl" and name == "k3":
        r = torch.clamp(ref - x, min=-20, max=20)
        return torch.clamp(torch.exp(r) - r - 1, min=-10, max=10)
    if profile == "openrlhf" and name == "k3":
        d = d.clamp(min=-10)
    out = {
        "k1": lambda: d,
        "k2": lambda: d * d / 2,
        "k3": lambda: torch.exp(-d) - 1 + d,
        "abs": lambda: d.abs(),
        "oneSided": lambda: torch.clamp(d, min=0.0),
    }[name]()
    return out.clamp(-10, 10) if profile == "openrlhf" else out


# ---- rewards ----------------------------------------------------------------------------------------------------

def trl_padding(mask):
    """TRL's padding masks of the policy and of the critic, from pad ids standing where the mask is 0."""
    length = first_true_indices(~mask) - 1
    idx = torch.arange(mask.shape[1])[None, :]
    return idx > length[:, None], idx > (length + 1)[:, None], length


def shaped(profile, d, beta, estimator, clip):
    mask, scores = d["mask"], d["scores"].clone()
    kl = kl_estimate(profile, estimator, d["old"], d["ref"])
    rows = torch.arange(mask.shape[0])
    if clip is not None:
        scores = scores.clamp(*clip)
    if profile == "alpacafarm":
        rewards = -beta * kl
        rewards[rows, mask.sum(1) - 1] += scores
        return rewards, kl
    kl = kl * mask
    rewards = -beta * kl
    if profile == "trl":
        _, _, length = trl_padding(mask)
        rewards[rows, torch.where(length + 1 < mask.shape[1], length + 1, length)] += scores
    elif profile == "verl":
        rewards[rows, d["lengths"] - 1] += scores
    else:
        last = mask.shape[1] - 1 - mask.long().flip(1).argmax(1)
        rewards[rows, last] += scores
    return rewards, kl


# ---- advantages -------------------------------------------------------------------------------------------------

def whiten(profile, x, mask, keep_mean=False):
    m = mask.double()
    if profile == "alpacafarm":
        mean, std = x.mean(), x.std(unbiased=False)
        return (x - mean) / (std + 1e-8) + (mean if keep_mean else 0.0)
    if profile == "trl":
        return trl_whiten(x, mask, shift_mean=not keep_mean).masked_fill(~mask, 0)
    eps = 1e-8 if profile == "verl" else 0.0
    n = m.sum()
    mean = (x * m).sum() / (n + eps)
    var = ((x - mean) ** 2 * m).sum() / (n + eps)
    if profile == "openrlhf":
        scale = var.clamp(min=1e-8).rsqrt()
    else:
        scale = torch.rsqrt(var * n / (n - 1) + 1e-8)
    return ((x - mean) * scale + (mean if keep_mean else 0.0)) * m


def slotwise_gae(rewards, values, gamma, lam):
    out, last, following = torch.zeros_like(rewards), 0.0, 0.0
    for t in reversed(range(rewards.shape[1])):
        last = rewards[:, t] + gamma * following - values[:, t] + gamma * lam * last
        following = values[:, t]
        out[:, t] = last
    return out


def skipping_gae(rewards, values, mask, gamma, lam):
    """By each row's own tokens: the definition, a sum of decayed TD errors."""
    out = torch.zeros_like(rewards)
    for b in range(rewards.shape[0]):
        at = mask[b].nonzero().flatten().tolist()
        v = [values[b, t] for t in at] + [torch.tensor(0.0)]
        delta = [rewards[b, t] + gamma * v[i + 1] - v[i] for i, t in enumerate(at)]
        for i, t in enumerate(at):
            out[b, t] = sum((gamma * lam) ** (j - i) * delta[j] for j in range(i, len(at)))
    return out


def skipping_to_go(rewards, mask, gamma):
    return skipping_gae(rewards, torch.zeros_like(rewards), mask, gamma, 1.0)


def verl_to_go(rewards, mask, gamma):
    """compute_reinforce_plus_plus_outcome_advantage: the running return is carried over where the mask is 0."""
    out, running = torch.zeros_like(rewards), 0.0
    m = mask.double()
    for t in reversed(range(rewards.shape[1])):
        following = rewards[:, t] + gamma * running
        out[:, t] = following * m[:, t]
        running = following * m[:, t] + running * (1 - m[:, t])
    return out


def by_group(scores, groups, function):
    out = torch.empty_like(scores)
    for g in groups.unique():
        members = groups == g
        out[members] = function(scores[members])
    return out


def centred(profile, estimator, scores, groups):
    eps = {"openrlhf": 1e-9, "trl": 1e-4}.get(profile, 1e-6)
    function = {
        "rloo": lambda s: s - (s.sum() - s) / (len(s) - 1),
        "grpo": lambda s: (s - s.mean()) / (s.std() + eps),
        "drGrpo": lambda s: s - s.mean(),
        "reinforcePlusPlusBaseline": lambda s: s - s.mean(),
    }[estimator]
    return by_group(scores, groups, function)


def advantage(profile, d, estimator, beta, kl_estimator, clip, gamma, lam, whiten_rewards):
    mask, m = d["mask"], d["mask"].double()
    rewards, _ = shaped(profile, d, beta, kl_estimator, clip)
    if whiten_rewards:
        if profile == "trl":
            _, pad1, _ = trl_padding(mask)
            rewards = trl_whiten(rewards, mask=~pad1, shift_mean=False).masked_fill(pad1, 0)
        else:
            rewards = whiten(profile, rewards, mask, keep_mean=True)
    if estimator == "gae":
        if profile == "openrlhf":
            v = d["values"] * m
            raw = slotwise_gae(rewards * m, v, gamma, lam)
            return raw * m, whiten(profile, raw, mask), (raw + v) * m
        if profile == "trl":
            _, pad1, _ = trl_padding(mask)
            v = d["values"].masked_fill(pad1, 0)
            raw = slotwise_gae(rewards, v, gamma, lam)
            return raw * m, whiten(profile, raw, mask), raw + v
        if profile == "alpacafarm":
            raw = slotwise_gae(rewards, d["values"], gamma, lam)
            return raw, whiten(profile, raw, mask), raw + d["values"]
        raw = skipping_gae(rewards, d["values"], mask, gamma, lam)
        return raw, whiten(profile, raw, mask), (raw + d["values"]) * m
    if estimator == "reinforcePlusPlus":
        if profile == "openrlhf":
            raw = slotwise_gae(rewards * m, torch.zeros_like(m), gamma, 1.0) * m
        elif profile == "verl":
            raw = verl_to_go(rewards, mask, gamma)
        else:
            raw = skipping_to_go(rewards, mask, gamma)
        return raw, whiten(profile, raw, mask), raw
    if profile == "verl" or (profile == "trl" and estimator == "rloo"):
        raw = centred(profile, estimator, rewards.sum(1), d["groups"])[:, None] * m
    elif profile == "openrlhf":
        r = centred(profile, estimator, d["scores"], d["groups"])
        r, _ = shaped(profile, {**d, "scores": r}, beta, kl_estimator, clip)
        raw = slotwise_gae(r * m, torch.zeros_like(m), 1.0, 1.0) * m
    else:
        scores = d["scores"] if clip is None else d["scores"].clamp(*clip)
        r = centred(profile, estimator, scores, d["groups"])
        if estimator in ("grpo", "drGrpo"):
            raw = r[:, None] * m
        else:
            r, _ = shaped(profile, {**d, "scores": r}, beta, kl_estimator, None)
            raw = skipping_to_go(r, mask, gamma)
    last = whiten(profile, raw, mask) if estimator == "reinforcePlusPlusBaseline" else raw
    return raw, last, raw


# ---- losses -----------------------------------------------------------------------------------------------------

def reduce(profile, loss, mask, aggregation):
    m = mask.double()
    if profile == "alpacafarm" and aggregation == "tokenMean":
        return loss.mean()
    if aggregation == "tokenMean":
        return trl_mean(loss, mask) if profile == "trl" else (loss * m).sum() / m.sum()
    if aggregation == "tokenSum":
        return (loss * m).sum()
    rows = (m.sum(1) > 0).double().sum()
    if aggregation == "sequenceMeanTokenMean":
        eps = 1e-8 if profile in ("verl", "openrlhf") else 0.0
        return ((loss * m).sum(1) / (m.sum(1) + eps)).sum() / rows
    total = (loss * m).sum(1).sum() / rows
    return total / mask.shape[1] if aggregation == "sequenceMeanTokenSumNorm" else total


def correction(d, level="token", outside="truncate", low=0.0, high=2.0):
    """The weights of TRL's vllm_importance_sampling_mode (token_ and sequence_, truncate and mask), which for tokens are
    OpenRLHF's tis and icepop and verl's rollout_is too, and of OpenRLHF's seq-mask-tis."""
    difference, m = d["old"] - d["rollout"], d["mask"].double()
    if level == "geometric":
        mean = (difference * m).sum(-1) / m.sum(-1)
        kept = (mean.exp() >= low) & (mean.exp() <= high)
        return kept.double().unsqueeze(-1) * difference.exp()
    weight = difference.exp() if level == "token" else (difference * m).sum(-1, keepdim=True).exp()
    if outside == "truncate":
        return torch.clamp(weight, min=low, max=high)
    return weight.masked_fill((weight < low) | (weight > high), 0.0)


def surrogate(d, adv, ratio, low, high, dual, tis):
    """The loss of each token, which all frameworks take of a ratio in the same way, and where the clip holds it."""
    first, second = -adv * ratio, -adv * torch.clamp(ratio, 1 - low, 1 + high)
    loss = torch.max(first, second)
    if dual:
        loss = torch.where(adv < 0, torch.min(-adv * dual, loss), loss)
    if isinstance(tis, dict):
        loss = loss * correction(d, **tis)
    elif tis:
        loss = loss * (d["old"] - d["rollout"]).exp().clamp(max=tis)
    return loss, (second > first).double()


def policy(profile, d, adv, low, high, dual, aggregation, tis=None):
    x = d["new"].clone().requires_grad_(True)
    mask, m = d["mask"], d["mask"].double()
    log_ratio = x - d["old"]
    bounded = log_ratio if profile in ("trl", "alpacafarm") else log_ratio.clamp(-20, 20)
    loss, clipped = surrogate(d, adv, bounded.exp(), low, high, dual, tis)
    total = reduce(profile, loss, mask, aggregation)
    total.backward()
    if profile == "alpacafarm":
        fraction = clipped.mean() if aggregation == "tokenMean" else (clipped * m).sum() / m.sum()
        kl = 0.5 * (log_ratio**2).mean()
    elif profile == "trl":
        fraction, kl = trl_mean(clipped, mask), 0.5 * (log_ratio.masked_fill(~mask, 0) ** 2).mean()
    else:
        fraction, kl = (clipped * m).sum() / m.sum(), (-bounded * m).sum() / m.sum()
    return {"loss": total, "clipFraction": fraction, "approxKl": kl, "gradient": x.grad}


def gspo(profile, d, adv, low, high, dual, aggregation, tis=None):
    """One ratio per sequence: verl's compute_policy_loss_gspo, OpenRLHF's PolicyLoss with policy_loss_type gspo, TRL's
    GRPOTrainer with importance_sampling_level sequence, which the profiles without a GSPO of their own do too."""
    x = d["new"].clone().requires_grad_(True)
    mask, m = d["mask"], d["mask"].double()
    lengths = m.sum(-1).clamp(min=1)
    if profile == "verl":
        of_sequence = ((x - d["old"]) * m).sum(-1) / lengths
        ratio = (x - x.detach() + of_sequence.detach().unsqueeze(-1)).clamp(max=10.0).exp()
        aggregation, dual = "sequenceMeanTokenMean", None
    elif profile == "openrlhf":
        log_ratio = x - (d["rollout"] if tis is not None else d["old"])
        ratio = ((log_ratio * m).sum(-1) / lengths).exp().unsqueeze(-1) * m
        aggregation, tis = "sequenceMeanTokenMean", None
    else:
        ratio = (((x - d["old"]) * m).sum(-1) / lengths).unsqueeze(-1).exp()
        if profile == "alpacafarm":  # nothing is masked
            ratio = torch.where(mask, ratio, 1.0)
    loss, clipped = surrogate(d, adv, ratio, low, high, dual, tis)
    total = reduce(profile, loss, mask, aggregation)
    total.backward()
    since = (x - d["old"]).masked_fill(~mask, 0)
    everywhere = profile == "alpacafarm" and aggregation == "tokenMean"
    fraction = clipped.mean() if everywhere else (clipped * m).sum() / m.sum()
    kl = 0.5 * (since**2).mean() if profile in ("trl", "alpacafarm") else -since.sum() / m.sum()
    return {"loss": total, "clipFraction": fraction, "approxKl": kl, "gradient": x.grad}


def cispo(profile, d, adv, low, high, aggregation, tis=None, level="token"):
    """The log-prob by the clipped ratio: verl's compute_policy_loss_cispo, TRL's GRPOTrainer with loss_type cispo, whose
    epsilon_high is 1 + high and which has no lower bound. The profiles without a CISPO of their own do as verl's, with the
    bounds that they put on a log-ratio."""
    x = d["new"].clone().requires_grad_(True)
    mask, m = d["mask"], d["mask"].double()
    since = x - d["old"]
    if profile in ("default", "openrlhf", "verl"):
        since = torch.clamp(since, min=-20.0, max=20.0)
    log_weights = since
    if level == "sequence":
        log_weights = ((since * m).sum(-1) / m.sum(-1).clamp(min=1.0)).unsqueeze(-1)
    ratio = torch.exp(log_weights)
    if profile == "trl":
        weight = torch.clamp(ratio, max=1 + high).detach()
        clipped = ((ratio > 1 + high) & (adv > 0)).double()
    else:
        weight = torch.clamp(ratio, 1 - low, 1 + high).detach()
        clipped = (ratio != weight).double() * torch.ones_like(m)
    loss = -weight * adv * x
    if tis:
        loss = loss * (d["old"] - d["rollout"]).exp().clamp(max=tis)
    total = reduce(profile, loss, mask, aggregation)
    total.backward()
    everywhere = profile == "alpacafarm" and aggregation == "tokenMean"
    fraction = clipped.mean() if everywhere else (clipped * m).sum() / m.sum()
    if profile == "trl":
        kl = 0.5 * (since.masked_fill(~mask, 0) ** 2).mean()
    elif profile == "alpacafarm":
        kl = 0.5 * (since**2).mean()
    else:
        kl = (-since * m).sum() / m.sum()
    return {"loss": total, "clipFraction": fraction, "approxKl": kl, "gradient": x.grad}


def trl_rloo_policy(d, adv, low, high):
    """One ratio per sequence, as TRL's RLOOTrainer before it became a GRPO."""
    x = d["new"].clone().requires_grad_(True)
    m = d["mask"].double()
    a = adv.abs().amax(1) * adv.sum(1).sign()  # the same on every token
    difference = (x * m).sum(1) - (d["old"] * m).sum(1)
    ratio = difference.exp()
    first, second = -a * ratio, -a * torch.clamp(ratio, 1 - low, 1 + high)
    total = torch.max(first, second).mean()
    total.backward()
    return {
        "loss": total,
        "clipFraction": (second > first).double().mean(),
        "approxKl": 0.5 * (difference**2).mean(),
        "gradient": x.grad,
    }


def value(profile, d, eps):
    v = d["new_values"].clone().requires_grad_(True)
    mask = d["mask"]
    if profile == "trl":
        mask = ~trl_padding(mask)[1]
    limited = torch.clamp(v, d["values"] - eps, d["values"] + eps)
    first, second = (v - d["returns"]) ** 2, (limited - d["returns"]) ** 2
    loss = 0.5 * reduce(profile, torch.max(first, second), mask, "tokenMean")
    loss.backward()
    fraction = reduce(profile, (second > first).double(), mask, "tokenMean")
    return {"loss": loss, "clipFraction": fraction, "gradient": v.grad}


def controller(profile, coef, target, horizon, observations):
    out = []
    for kl, n in observations:
        error = min(max(kl / target - 1, -0.2), 0.2)
        coef *= 1 + (0.1 * error if profile == "alpacafarm" else error * n / horizon)
        out.append(coef)
    return out


# ---- cases ------------------------------------------------------------------------------------------------------

def plain(x):
    if isinstance(x, torch.Tensor):
        x = x.detach()
        x = x.round(decimals=12) if x.is_floating_point() else x
        return x.int().tolist() if x.dtype == torch.bool else x.tolist()
    if isinstance(x, dict):
        return {k: plain(v) for k, v in x.items()}
    return x


PROFILES = {
    #             kinds of batch            value clip  dual  gamma, lambda  beta   KL     score clip
    "default": (("right", "left", "tools"), 0.2, None, 1.0, 0.95, 0.01, "k1", None),
    "openrlhf": (("right", "tools"), 0.5, None, 1.0, 1.0, 0.01, "k1", (-10.0, 10.0)),
    "verl": (("right", "tools"), 0.5, 3.0, 1.0, 1.0, 0.001, "k1", None),
    "trl": (("right",), 0.2, None, 1.0, 0.95, 0.05, "k1", None),
    "alpacafarm": (("right",), 0.2, None, 1.0, 1.0, 0.2, "oneSided", None),
}
ESTIMATORS = ["gae", "rloo", "grpo", "drGrpo", "reinforcePlusPlus", "reinforcePlusPlusBaseline"]
HAVE = {
    "default": ESTIMATORS,
    "openrlhf": ESTIMATORS,
    "verl": ESTIMATORS,
    "trl": ["gae", "rloo"],
    "alpacafarm": ["gae"],
}
AGGREGATIONS = [
    "tokenMean",
    "sequenceMeanTokenMean",
    "sequenceMeanTokenSum",
    "sequenceMeanTokenSumNorm",
    "tokenSum",
]


def step_case(profile, kind, estimator, gamma, lam, seed, leave_out):
    _, value_clip, dual, _, _, beta, kl, clip = PROFILES[profile]
    d = batch(seed, kind)
    if profile == "alpacafarm":
        d = at_padding(d)
    whiten_rewards = profile == "alpacafarm"
    raw, adv, returns = advantage(profile, d, estimator, beta, kl, clip, gamma, lam, whiten_rewards)
    rewards, kl_values = shaped(profile, d, beta, kl, clip)
    question = {
        "profile": profile,
        "shape": {"logprobs": d["old"], "refLogprobs": d["ref"], "mask": d["mask"], "scores": d["scores"], "klCoef": beta},
        "advantage": {"estimator": estimator, "values": d["values"], "mask": d["mask"], "groups": d["groups"]},
        "policyLoss": {"logprobs": d["new"], "oldLogprobs": d["old"], "mask": d["mask"]},
        "valueLoss": {"values": d["new_values"], "oldValues": d["values"], "returns": d["returns"], "mask": d["mask"]},
        "whiten": {"values": d["values"], "mask": d["mask"]},
    }
    if kind == "tools" and profile == "verl":
        question["shape"]["lengths"] = d["lengths"]
    if not leave_out:
        question["advantage"] |= {"gamma": gamma, "lambda": lam}
    if profile == "trl" and estimator == "rloo":
        loss = trl_rloo_policy(d, adv, 0.2, 0.2)
    else:
        loss = policy(profile, d, adv, 0.2, 0.2, dual, "tokenMean")
    expected = {
        "shape": {"rewards": rewards, "kl": kl_values},
        "advantage": {"rawAdvantages": raw, "advantages": adv, "returns": returns},
        "policyLoss": loss,
        "valueLoss": value(profile, d, value_clip),
        "whiten": {"whitened": whiten(profile, d["values"], d["mask"])},
    }
    if estimator not in ("gae", "rloo"):
        for block in ("policyLoss", "valueLoss", "whiten"):
            del question[block], expected[block]
    return {"name": f"{profile} {estimator} {kind} gamma {gamma}", "input": plain(question), "expected": plain(expected)}


def cases():
    out = []
    for profile, (kinds, *_, _, _, _) in PROFILES.items():
        _, _, dual, gamma, lam, beta, _, _ = PROFILES[profile]
        for kind in kinds:
            for estimator in HAVE[profile]:
                out.append(step_case(profile, kind, estimator, gamma, lam, len(out) + 1, leave_out=True))
                if estimator in ("gae", "reinforcePlusPlus"):
                    out.append(step_case(profile, kind, estimator, 0.97, 0.9, len(out) + 1, leave_out=False))
        d = batch(100 + len(out), kinds[0])
        adv = (torch.randn(8, 7, generator=torch.Generator().manual_seed(3)) * 2).round(decimals=3)
        if profile == "alpacafarm":
            d = at_padding(d)
        for aggregation in AGGREGATIONS:
            ask = {"logprobs": d["new"], "oldLogprobs": d["old"], "advantages": adv, "mask": d["mask"]}
            ask |= {"clipLow": 0.1, "clipHigh": 0.28, "aggregation": aggregation}
            want = policy(profile, d, adv, 0.1, 0.28, dual, aggregation)
            question = {"profile": profile, "policyLoss": plain(ask)}
            out.append({"name": f"{profile} {aggregation}", "input": question, "expected": {"policyLoss": plain(want)}})
        far = {**d, "new": d["old"] + 4.0 * (d["new"] - d["old"])}
        ask = {"logprobs": far["new"], "oldLogprobs": d["old"], "advantages": adv, "mask": d["mask"], "clipLow": 0.2}
        ask |= {"clipHigh": 0.2, "dualClip": 1.5, "aggregation": "tokenMean", "rolloutLogprobs": d["rollout"]}
        ask |= {"truncatedImportanceSampling": 1.1}
        want = policy(profile, far, adv, 0.2, 0.2, 1.5, "tokenMean", tis=1.1)
        question = {"profile": profile, "policyLoss": plain(ask)}
        out.append({"name": f"{profile} dual clip, importance", "input": question, "expected": {"policyLoss": plain(want)}})
        for estimator in ("k1", "k2", "k3", "abs", "oneSided"):
            x = (d["old"] * 9.0).clone().requires_grad_(True)
            kl = kl_estimate(profile, estimator, x, d["ref"])
            kl.sum().backward()
            question = {"profile": profile, "kl": {"logprobs": x, "refLogprobs": d["ref"], "estimator": estimator}}
            want = {"kl": kl, "gradient": x.grad}
            out.append({"name": f"{profile} {estimator}", "input": plain(question), "expected": {"kl": plain(want)}})
        seen = [[0.02, 64], [0.2, 64], [0.11, 64], [0.098, 128]]
        question = {"coef": beta, "target": 0.1, "horizon": 1000, "observations": seen}
        want = {"coefs": controller(profile, beta, 0.1, 1000, seen)}
        out.append({"name": f"{profile} adaptive", "input": {"profile": profile, "klController": question}, "expected": {"klController": want}})
    for seed, profile in enumerate(PROFILES, 1000):
        out.extend(gspo_cases(profile, seed))
    out.extend(deviation_case(profile, seed) for seed, profile in enumerate(PROFILES, 3000))
    for seed, profile in enumerate(PROFILES, 2000):
        out.extend(correction_cases(profile, seed))
    for seed, profile in enumerate(PROFILES, 4000):
        out.extend(cispo_cases(profile, seed))
    return out


def deviation_case(profile, seed):
    """TRL's scale_rewards batch: the deviation of all scores, the mean of the group's."""
    d = batch(seed, "right")
    d["scores"] = d["scores"].clamp(-9, 9)  # within OpenRLHF's clip
    eps = {"openrlhf": 1e-9, "trl": 1e-4}.get(profile, 1e-6)
    centre = by_group(d["scores"], d["groups"], lambda s: s - s.mean())
    raw = (centre / (d["scores"].std() + eps))[:, None] * d["mask"].double()
    ask = {"estimator": "grpo", "deviation": "batch", "mask": d["mask"], "groups": d["groups"], "scores": d["scores"]}
    # The score stands in the last slot, for the profiles that compare the rows' sums or put another one in its place.
    slots = torch.arange(d["mask"].shape[1])
    ask["rewards"] = d["scores"][:, None] * (slots == d["lengths"][:, None] - 1)
    want = {"rawAdvantages": raw, "advantages": raw, "returns": raw}
    name = f"{profile} grpo by the deviation of the batch"
    return {"name": name, "input": {"profile": profile, "advantage": plain(ask)}, "expected": {"advantage": plain(want)}}


CORRECTIONS = [
    {"high": 1.1},
    {"low": 0.9, "high": 1.1},
    {"outside": "mask", "low": 0.9, "high": 1.1},
    {"level": "sequence", "low": 0.8, "high": 1.2},
    {"level": "sequence", "outside": "mask", "high": 1.05},
    {"level": "sequence", "outside": "mask", "low": 0.8, "high": 1.2},
    {"level": "geometric", "outside": "mask", "low": 0.9, "high": 1.1},
]


def correction_cases(profile, seed):
    d = batch(seed, PROFILES[profile][0][-1])
    if profile == "alpacafarm":
        d = at_padding(d)
    dual = PROFILES[profile][2]
    adv = (torch.randn(8, 7, generator=torch.Generator().manual_seed(seed)) * 2).round(decimals=3)
    common = {"logprobs": d["new"], "oldLogprobs": d["old"], "advantages": adv, "mask": d["mask"]}
    common |= {"rolloutLogprobs": d["rollout"], "clipLow": 0.2, "clipHigh": 0.2, "aggregation": "tokenMean"}
    out = []
    for asked in CORRECTIONS:
        kept = correction(d, **asked)
        left_out = (kept == 0).double().mean()
        assert asked.get("outside") != "mask" or 0 < left_out < 1, f"{asked} leaves out {left_out} of {profile}'s"
        for ratio, loss in (("token", policy), ("sequence", gspo))[: 2 if "level" in asked and "low" in asked else 1]:
            ask = common | {"ratio": ratio, "rolloutCorrection": asked}
            want = loss(profile, d, adv, 0.2, 0.2, dual, "tokenMean", tis=asked)
            name = f"{profile} {ratio} ratio, correction {' '.join(map(str, asked.values()))}"
            out.append({"name": name, "input": {"profile": profile, "policyLoss": plain(ask)}, "expected": {"policyLoss": plain(want)}})
    return out


def gspo_cases(profile, seed):
    d = batch(seed, PROFILES[profile][0][-1])
    if profile == "alpacafarm":
        d = at_padding(d)
    d["new"] = d["old"] + 0.1 * (d["new"] - d["old"])  # sequences on either side of the bounds, and between them
    adv = (torch.randn(8, 7, generator=torch.Generator().manual_seed(seed)) * 2).round(decimals=3)
    common = {"logprobs": d["new"], "oldLogprobs": d["old"], "advantages": adv, "mask": d["mask"], "ratio": "sequence"}
    cases = []

    def case(name, ask, want):
        question = {"profile": profile, "policyLoss": plain(common | ask)}
        cases.append({"name": f"{profile} gspo {name}", "input": question, "expected": {"policyLoss": plain(want)}})

    for aggregation in ("tokenMean", "sequenceMeanTokenMean", "tokenSum"):
        ask = {"clipLow": 0.003, "clipHigh": 0.004, "aggregation": aggregation}
        case(aggregation, ask, gspo(profile, d, adv, 0.003, 0.004, None, aggregation))
    own = (3e-4, 4e-4, None, "sequenceMeanTokenMean") if profile == "default" else (0.2, 0.2, None, "tokenMean")
    case("left out", {}, gspo(profile, d, adv, *own))
    ask = {"clipLow": 0.003, "clipHigh": 0.004, "rolloutLogprobs": d["rollout"], "truncatedImportanceSampling": 1.1}
    if profile != "verl":  # which has no dual clip there
        ask["dualClip"] = 1.002
    ask["aggregation"] = "tokenMean"
    case("dual clip, importance", ask, gspo(profile, d, adv, 0.003, 0.004, 1.002, "tokenMean", tis=1.1))
    return cases


def cispo_cases(profile, seed):
    d = batch(seed, PROFILES[profile][0][-1])
    if profile == "alpacafarm":
        d = at_padding(d)
    far = {**d, "new": d["old"] + 6.0 * (d["new"] - d["old"])}  # some ratios beyond 5
    adv = (torch.randn(8, 7, generator=torch.Generator().manual_seed(seed)) * 2).round(decimals=3)
    common = {"oldLogprobs": d["old"], "advantages": adv, "mask": d["mask"], "surrogate": "cispo"}
    low = 1.0 if profile == "trl" else 0.1
    cases = []

    def case(name, data, ask, want):
        assert 0 < want["clipFraction"] < 1, f"{want['clipFraction']} of {profile}'s are clipped: {name}"
        question = {"profile": profile, "policyLoss": plain(common | {"logprobs": data["new"]} | ask)}
        cases.append({"name": f"{profile} cispo {name}", "input": question, "expected": {"policyLoss": plain(want)}})

    bounds = {"clipLow": low, "clipHigh": 0.28}
    for aggregation in AGGREGATIONS:
        case(aggregation, d, bounds | {"aggregation": aggregation}, cispo(profile, d, adv, low, 0.28, aggregation))
    # The bounds of verl's actor.yaml, of ScaleRL and TRL's manual elsewhere.
    own = (0.2, 0.2) if profile == "verl" else (1.0, 4.0)
    case("left out", far, {}, cispo(profile, far, adv, *own, "tokenMean"))
    ask = bounds | {"aggregation": "tokenMean", "rolloutLogprobs": d["rollout"], "truncatedImportanceSampling": 1.1}
    case("importance", d, ask, cispo(profile, d, adv, low, 0.28, "tokenMean", tis=1.1))
    if profile in ("default", "trl"):  # TRL's importance_sampling_level sequence
        ask = {"clipLow": 1.0, "clipHigh": 0.01, "aggregation": "tokenMean", "ratio": "sequence"}
        case("of sequences", d, ask, cispo(profile, d, adv, 1.0, 0.01, "tokenMean", level="sequence"))
    return cases


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    text = "[\n" + ",\n".join(json.dumps(case) for case in cases()) + "\n]\n"
    if not arguments.check:
        FIXTURE.write_text(text)
        return print(f"wrote {FIXTURE} ({len(text)} bytes)")
    theirs, ours = json.loads(FIXTURE.read_text()), json.loads(text)
    worst = max(distance(a, b) for a, b in zip(theirs, ours, strict=True))
    print(f"greatest difference {worst:.3g}")
    raise SystemExit(worst > 1e-12)


def distance(a, b):
    if isinstance(a, dict):
        return max((distance(a[k], b[k]) for k in a), default=0.0)
    if isinstance(a, list):
        return max((distance(x, y) for x, y in zip(a, b, strict=True)), default=0.0)
    return abs(a - b) if isinstance(a, float) else float(a != b)


if __name__ == "__main__":
    main()
