"""Do scenarios to a started server and bring back measurements."""
