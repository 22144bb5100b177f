//! YAML's merge keys: `reference: {<<: *cpu, nodes: 2}` has what the block with the anchor `&cpu` has, and `nodes`.

use serde_yaml::{Mapping, Value};

const KEY: &str = "<<";

/// Puts what stands under merge keys into the blocks around them. What is written there itself counts, then the first of several blocks. A key
/// under which no block stands is left as it is: it is a field that is not known.
pub(super) fn apply(value: &mut Value) {
    match value {
        Value::Mapping(fields) => {
            // Inner ones first: a block that is merged may be merged of others.
            fields.values_mut().for_each(apply);
            merge(fields);
        }
        Value::Sequence(items) => items.iter_mut().for_each(apply),
        _ => {}
    }
}

fn merge(fields: &mut Mapping) {
    match fields.shift_remove(KEY) {
        Some(Value::Mapping(block)) => add(fields, block),
        Some(Value::Sequence(blocks)) if blocks.iter().all(Value::is_mapping) => {
            for block in blocks {
                if let Value::Mapping(block) = block {
                    add(fields, block);
                }
            }
        }
        Some(other) => {
            fields.insert(KEY.into(), other);
        }
        None => {}
    }
}

fn add(fields: &mut Mapping, block: Mapping) {
    for (name, value) in block {
        fields.entry(name).or_insert(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(text: &str) -> Value {
        let mut value = serde_yaml::from_str(text).unwrap();
        apply(&mut value);
        value
    }

    fn read(text: &str) -> Value {
        serde_yaml::from_str(text).unwrap()
    }

    #[test]
    fn what_a_block_says_itself_counts_before_what_it_is_merged_of() {
        assert_eq!(merged("{<<: {a: 1, b: 2}, b: 3}"), read("{b: 3, a: 1}"));
        assert_eq!(merged("{b: 3, <<: [{a: 1}, {a: 2, c: 4}]}"), read("{b: 3, a: 1, c: 4}"));
        assert_eq!(merged("[{x: {<<: {a: 1}}}]"), read("[{x: {a: 1}}]"));
    }

    #[test]
    fn a_block_that_is_merged_may_be_merged_of_others() {
        let text = "one: &one {a: 1}\ntwo: &two {<<: *one, b: 2}\nthree: {<<: [*two, {<<: {c: 3}}]}\n";
        assert_eq!(merged(text)["three"], read("{a: 1, b: 2, c: 3}"));
    }

    #[test]
    fn a_merge_key_without_a_block_stays() {
        for text in ["{<<: 1, a: 2}", "{<<: [{a: 1}, 2]}"] {
            assert_eq!(merged(text), read(text), "{text}");
        }
    }
}
