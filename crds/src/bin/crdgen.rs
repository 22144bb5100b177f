//! Prints `crds/ppojob.yaml`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    print!("{}", ppo_crds::crd_yaml()?);
    Ok(())
}
