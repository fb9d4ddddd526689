"""The paper's ablations and measurements, each one short module and a row of `registry`, to be rerun by anyone."""
