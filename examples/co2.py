"""As a model might write it: it reads a table of 44 years, prints means and leaves a picture."""

import csv
from collections import defaultdict

years = defaultdict(list)
with open("mauna-loa-co2.csv") as file:
    for row in csv.DictReader(file):
        if row["co2"]:
            years[row["date"][:4]].append(float(row["co2"]))
means = {year: sum(values) / len(values) for year, values in years.items()}
print("year   CO2 at Mauna Loa, parts per million")
for year in ("1959", "1970", "1980", "1990", "2000"):
    print(year, f"{means[year]:8.1f}  " + "#" * round(means[year] - 300))
points = " ".join(f"{10 + 9 * i},{200 - 2 * (mean - 310):.1f}" for i, mean in enumerate(means.values()))
with open("co2.svg", "w") as file:
    file.write('<svg xmlns="http://www.w3.org/2000/svg" width="420" height="210">')
    file.write(f'<polyline fill="none" stroke="black" points="{points}"/></svg>')
