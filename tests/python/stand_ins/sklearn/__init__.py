"""In place of scikit-learn where it is not installed, for the examples of docs/serve-a-model.md."""
