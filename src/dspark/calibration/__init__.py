"""What a draft is worth: records of rounds, how well survival is predicted, and calibration. numpy only, no models."""
