//! Values of config.json, each checked before it is used.

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};
use tch::Kind;

/// Greatest size that is believed: products of two of them are numbers still.
const LARGEST: i64 = i32::MAX as i64;

/// The object of a config.json.
pub(super) struct Keys<'a>(pub(super) &'a Map<String, Value>);

impl Keys<'_> {
    pub(super) fn given(&self, key: &str) -> Option<&Value> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    pub(super) fn size(&self, key: &str) -> Result<Option<i64>> {
        let Some(value) = self.given(key) else { return Ok(None) };
        match value.as_i64().filter(|size| *size > 0) {
            Some(size) if size > LARGEST => bail!("{key} is {value}: at most {LARGEST} is believed"),
            Some(size) => Ok(Some(size)),
            None => bail!("{key} is {value}: a positive whole number is needed"),
        }
    }

    pub(super) fn required(&self, key: &str) -> Result<i64> {
        self.size(key)?.with_context(|| format!("{key} is missing"))
    }

    pub(super) fn number(&self, key: &str) -> Result<Option<f64>> {
        let Some(value) = self.given(key) else { return Ok(None) };
        value
            .as_f64()
            .map(Some)
            .with_context(|| format!("{key} is {value}: a number is needed"))
    }

    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>> {
        let Some(value) = self.given(key) else { return Ok(None) };
        value
            .as_bool()
            .map(Some)
            .with_context(|| format!("{key} is {value}: true or false is needed"))
    }

    pub(super) fn dtype(&self) -> Result<Option<Kind>> {
        // transformers before 4.56 wrote torch_dtype.
        match self
            .given("dtype")
            .or_else(|| self.given("torch_dtype"))
            .and_then(Value::as_str)
        {
            None => Ok(None),
            // Weights of float64 are rounded when they are read: no model is computed or saved in it.
            Some("float32" | "float64") => Ok(Some(Kind::Float)),
            Some("bfloat16") => Ok(Some(Kind::BFloat16)),
            Some("float16") => Ok(Some(Kind::Half)),
            Some(other) => bail!("dtype is {other}: supported are float32, bfloat16, float16 and float64"),
        }
    }
}
